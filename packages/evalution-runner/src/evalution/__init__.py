"""Measure language models on any engine: `run`, suites, engines, and the results of both.

Importing this package imports nothing else: each name is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalution import engines, fidelity, suites
    from evalution.comparison import Comparison, compare
    from evalution.noise import measure_noise
    from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult
    from evalution.runs.options import RunOptions
    from evalution.runs.preflight import EngineAndModel
    from evalution.runs.run import Run, run
    from evalution.suites import Generation, MultipleChoice, Perplexity, Suite
    from evalution_core import Model

__all__ = [
    "Comparison",
    "EngineAndModel",
    "Generation",
    "MetricResult",
    "Model",
    "MultipleChoice",
    "Perplexity",
    "Run",
    "RunOptions",
    "RunResult",
    "SampleResult",
    "Suite",
    "SuiteResult",
    "compare",
    "engines",
    "fidelity",
    "measure_noise",
    "run",
    "suites",
]
_NAMES = {
    "evalution.comparison": ("Comparison", "compare"),
    "evalution.noise": ("measure_noise",),
    "evalution.results": ("MetricResult", "RunResult", "SampleResult", "SuiteResult"),
    "evalution.runs.options": ("RunOptions",),
    "evalution.runs.preflight": ("EngineAndModel",),
    "evalution.runs.run": ("Run", "run"),
    "evalution.suites": ("Generation", "MultipleChoice", "Perplexity", "Suite"),
    "evalution_core": ("Model",),
}


def __getattr__(name: str) -> Any:
    if name in ("engines", "fidelity", "suites"):
        return import_module(f"evalution.{name}")
    for module, names in _NAMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
