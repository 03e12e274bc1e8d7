"""Prints which conformance checks catch each mutant: `tools/conformance_matrix.py [NAME…]`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evalution_conformance import EngineConformance
from evalution_conformance.suite import find_checks, run_check
from evalution_conformance.watch import call_unawaited

_TESTS = Path(__file__).parents[1] / "packages" / "evalution-conformance" / "tests"
sys.path.insert(0, str(_TESTS))

from mutants import MUTANTS, Mutant, toy_subject  # noqa: E402 - found in the folder above

_TIMEOUT_S = 4.0


def find_catching_checks(mutant: Mutant) -> list[str]:
    """Return every check that fails on the mutant; one that hangs fails after a few seconds."""
    catching: list[str] = []
    for name, check in find_checks(EngineConformance).items():
        with mutant.open() as engine:
            subject = toy_subject(engine, timeout=_TIMEOUT_S)
            try:
                run_check(check, subject)
            except pytest.skip.Exception:
                pass
            except Exception:  # noqa: BLE001 - any failure of a check is a catch
                catching.append(name)
            call_unawaited(subject.close)
    return catching


def main() -> int:
    """Print a line for each mutant; return 1 if one isn't caught."""
    missed = 0
    for name in sys.argv[1:] or MUTANTS:
        catching = find_catching_checks(MUTANTS[name])
        missed += not catching
        print(f"{name} ({len(catching)}): {', '.join(catching) or 'NOT CAUGHT'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
