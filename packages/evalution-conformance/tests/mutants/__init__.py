"""Engines with one planted fault each, taken from the field: the test of the checks themselves."""

from mutants import (
    checkpoints,
    completions,
    distributions,
    draws,
    engines,
    fields,
    isolation,
    scores,
    streams,
    windows,
)
from mutants.catalogue import MUTANTS, Mutant, toy_subject

__all__ = [
    "MUTANTS",
    "Mutant",
    "checkpoints",
    "completions",
    "distributions",
    "draws",
    "engines",
    "fields",
    "isolation",
    "scores",
    "streams",
    "toy_subject",
    "windows",
]
