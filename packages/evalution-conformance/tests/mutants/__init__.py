"""Engines with one planted fault each, taken from the field: the test of the checks themselves."""

from mutants import completions, draws, engines, scores, streams
from mutants.catalogue import MUTANTS, Mutant, toy_subject

__all__ = [
    "MUTANTS",
    "Mutant",
    "completions",
    "draws",
    "engines",
    "scores",
    "streams",
    "toy_subject",
]
