"""A model that belongs to the caller: left as it was found after each step on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar, cast

import torch

from evalution_transformers.forward import CausalModel

T = TypeVar("T")
Lending = Callable[[], AbstractContextManager[None]]
"""Gives a context in which the model may be run."""


def lending(model: CausalModel) -> Lending:
    """Contexts in which `model` is in eval mode, without autocast.

    After each the modules that train do so again, and its generation settings are the caller's.
    """
    modules = cast(torch.nn.Module, model)

    @contextmanager
    def lent() -> Generator[None]:
        training = [module for module in modules.modules() if module.training]
        settings = model.generation_config
        for module in training:
            module.training = False
        try:
            # A loop that trains under autocast may attach in it; answers are the weights' own.
            with torch.autocast(model.device.type, enabled=False):
                yield
        finally:
            model.generation_config = settings
            for module in training:
                module.training = True

    return lent


def within(steps: Iterator[T], lent: Lending) -> Iterator[T]:
    """`steps`, each advanced in a context of its own: between two steps the model is untouched."""
    end = object()
    try:
        while True:
            with lent():
                step = next(steps, end)
            if step is end:
                return
            yield cast(T, step)
    finally:
        if isinstance(steps, Generator):
            with lent():
                steps.close()
