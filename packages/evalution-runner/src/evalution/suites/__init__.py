"""Suites: what is asked of a model, and how its answers are scored.

The tasks are attributes too (`suites.HellaSwag`); they are imported once one is asked for.
"""

from __future__ import annotations

from evalution.scoring.metrics import Score
from evalution.suites.choice_suite import ChoiceSuite, ContextChoiceSuite, MultipleChoice
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.discovery import available_suites, built_in_suite, load_suite
from evalution.suites.generation_suite import Generation, GenerationSuite
from evalution.suites.judge import Judge
from evalution.suites.language_modelling import ContinuationSuite, Perplexity, PerplexitySuite
from evalution.suites.prompted_suite import PromptedSuite
from evalution.suites.row_suite import RowSuite
from evalution.suites.suite import AnySuite, Sample, Suite, SuiteSet
from evalution_core.kinds import RequestKind

__all__ = [
    "AnySuite",
    "ChoiceSuite",
    "ContextChoiceSuite",
    "ContinuationSuite",
    "Dataset",
    "DatasetRows",
    "Generation",
    "GenerationSuite",
    "Judge",
    "MultipleChoice",
    "Perplexity",
    "PerplexitySuite",
    "PromptedSuite",
    "RequestKind",
    "RowSuite",
    "Sample",
    "Score",
    "Suite",
    "SuiteSet",
    "available_suites",
    "load_suite",
]


def __getattr__(name: str) -> type[AnySuite]:
    if (found := built_in_suite(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
