"""Arguments that are handed on: each one once, each one known, none that the engine owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from evalution_core import BaseEngine, BaseInferenceSession, ConfigurationError, Model
from evalution_enginekit.runtime import (
    SET_BY_THE_ENGINE,
    find_changed_options,
    merge_arguments,
    refuse_unknown,
)

REFUSED = {"model": "set model.path", "runner": SET_BY_THE_ENGINE}


@dataclass(slots=True)
class Acme(BaseEngine):
    width: int = 1
    depth: int | None = None
    mode: str = "auto"

    def build(self, model: Model) -> BaseInferenceSession:
        raise NotImplementedError


def further(**sources: dict[str, Any]) -> dict[str, Any]:
    return merge_arguments(sources, refused=REFUSED, taken={"width"})


def test_arguments_of_all_sources_are_merged() -> None:
    assert further(acme_kwargs={"a": 1}, model_kwargs={"b": None}) == {"a": 1, "b": None}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"acme_kwargs": {"model": "x"}}, "acme_kwargs may not hold model: set model.path"),
        ({"acme_kwargs": {"runner": 1}}, "acme_kwargs may not hold runner: the engine sets it"),
        ({"acme_kwargs": {"width": 1}}, "width is set twice, the second time in acme_kwargs"),
        (
            {"acme_kwargs": {"a": 1}, "model_kwargs": {"a": 1}},
            "a is set twice, the second time in model_kwargs",
        ),
    ],
)
def test_refused_or_repeated_argument_is_named(sources: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        further(**sources)
    assert str(refused.value) == message


def test_find_changed_options_ignores_defaults() -> None:
    assert find_changed_options(
        Acme(width=1, depth=0, mode="fast"), ("width", "depth", "mode")
    ) == {
        "depth": 0,
        "mode": "fast",
    }


def test_unknown_argument_is_refused_with_the_nearest_name() -> None:
    refuse_unknown(["width"], {"width"}, "acme 1.2")
    with pytest.raises(ConfigurationError) as refused:
        refuse_unknown(["widht"], {"width"}, "acme 1.2", "cache field")
    assert str(refused.value) == (
        "acme 1.2 has no cache field 'widht'; did you mean 'width'?; leave it out, or install a "
        "version that has it"
    )
