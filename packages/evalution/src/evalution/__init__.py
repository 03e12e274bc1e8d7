"""Measure language models on any engine: `run`, suites, engines, and the results of both.

Importing this package loads no engine, and neither the command line nor YAML.
"""

from evalution import engines, suites
from evalution.comparison import Comparison, compare
from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult
from evalution.runs.options import RunOptions
from evalution.runs.run import Run, run
from evalution.suites import Generation, MultipleChoice, Perplexity, Suite
from evalution_core import Model

__all__ = [
    "Comparison",
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
    "run",
    "suites",
]
