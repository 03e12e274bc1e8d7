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
    """Contexts in which `model` is in eval mode; the modules that train are put back after each."""
    modules = cast(torch.nn.Module, model)

    @contextmanager
    def lent() -> Generator[None]:
        training = [module for module in modules.modules() if module.training]
        for module in training:
            module.training = False
        try:
            yield
        finally:
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
