"""Suites: what is asked of a model, and how its answers are scored."""

from evalution.suites.discovery import available_suites, load_suite
from evalution.suites.generation import Generation
from evalution.suites.multiple_choice import MultipleChoice
from evalution.suites.perplexity import Perplexity
from evalution.suites.row_suite import PromptedSuite, RowSuite
from evalution.suites.suite import RequestKind, Sample, Score, Suite

__all__ = [
    "Generation",
    "MultipleChoice",
    "Perplexity",
    "PromptedSuite",
    "RequestKind",
    "RowSuite",
    "Sample",
    "Score",
    "Suite",
    "available_suites",
    "load_suite",
]
