"""Engines with one planted fault each, taken from the field: the test of the checks themselves."""

from evalution_conformance.mutants import (
    completions,
    endings,
    engines,
    packages,
    samples,
    scores,
    streams,
    texts,
)
from evalution_conformance.mutants.catalogue import MUTANTS, Mutant, toy_subject

__all__ = [
    "MUTANTS",
    "Mutant",
    "completions",
    "endings",
    "engines",
    "packages",
    "samples",
    "scores",
    "streams",
    "texts",
    "toy_subject",
]
