"""lm-evaluation-harness and Evalution: any engine as its model, any of its tasks as a suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalution_lm_eval.__main__ import register

if TYPE_CHECKING:
    from evalution_lm_eval.model import EvalutionLM
    from evalution_lm_eval.suite import LmEval

__all__ = ["EvalutionLM", "LmEval", "register"]


def __getattr__(name: str) -> Any:
    # lm-eval takes seconds to import, which the name of a suite shouldn't cost.
    if name == "EvalutionLM":
        from evalution_lm_eval.model import EvalutionLM  # noqa: PLC0415

        return EvalutionLM
    if name == "LmEval":
        from evalution_lm_eval.suite import LmEval  # noqa: PLC0415

        return LmEval
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
