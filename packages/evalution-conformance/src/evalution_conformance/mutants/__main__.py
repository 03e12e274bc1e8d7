"""Prints which checks catch each mutant: `python -m evalution_conformance.mutants [NAME…]`."""

from __future__ import annotations

import sys

import pytest

from evalution_conformance import EngineConformance
from evalution_conformance.mutants import MUTANTS, Mutant, toy_subject
from evalution_conformance.suite import checks_of, run_check
from evalution_conformance.watch import let_go

_TIMEOUT_S = 4.0


def caught_by(mutant: Mutant) -> list[str]:
    """Every check that fails on the mutant; one that hangs fails after a few seconds."""
    found: list[str] = []
    for name, check in checks_of(EngineConformance).items():
        with mutant.open() as engine:
            subject = toy_subject(engine, timeout=_TIMEOUT_S)
            try:
                run_check(check, subject)
            except pytest.skip.Exception:
                pass
            except Exception:  # noqa: BLE001 - any failure of a check is a catch
                found.append(name)
            let_go(subject.close)
    return found


def main() -> int:
    """Print a line for each mutant; 1 if one isn't caught."""
    missed = 0
    for name in sys.argv[1:] or MUTANTS:
        found = caught_by(MUTANTS[name])
        missed += not found
        print(f"{name} ({len(found)}): {', '.join(found) or 'NOT CAUGHT'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
