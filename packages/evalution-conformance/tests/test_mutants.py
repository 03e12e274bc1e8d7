"""The checks are tested: each fault is caught by the checks named for it, each check by a fault."""

from __future__ import annotations

import pytest

from evalution_conformance import EngineConformance
from evalution_conformance.suite import find_checks, get_group, run_check
from evalution_core import Model
from mutants import MUTANTS, toy_subject
from mutants.catalogue import REQUESTS
from mutants.toy import INCOMPLETE, UNTEMPLATED, WEIGHTS, Toy, ToyRequestSession

CHECKS = find_checks(EngineConformance)
PAIRS = [(name, check) for name, mutant in MUTANTS.items() for check in mutant.caught_by]


class TestToy(EngineConformance):
    """The sound engine that the mutants are made from; what it declares is checked of the mock."""

    checks = frozenset(map(get_group, CHECKS.values())) - {"discovery"}
    engine = Toy()
    oracle = Toy()
    model = Model(path=WEIGHTS)
    untemplated = Model(path=UNTEMPLATED)
    incomplete = Model(path=INCOMPLETE)


class TestToyOnRequests(TestToy):
    """The sound engine on the other session base, in the checks of faults that both can have."""

    checks = frozenset(
        check
        for mutant in MUTANTS.values()
        if mutant.name.endswith(REQUESTS)
        for check in mutant.caught_by
    )
    engine = Toy(fault=ToyRequestSession.__name__)


@pytest.mark.parametrize(("name", "check"), PAIRS)
def test_fault_is_caught(name: str, check: str) -> None:
    with MUTANTS[name].open() as engine:
        subject = toy_subject(engine)
        try:
            with pytest.raises(Exception) as raised:  # noqa: PT011 - any failure of the check
                run_check(CHECKS[check], subject)
        finally:
            subject.close()
    # An error in a mutant itself is no catch.
    assert not isinstance(raised.value, AttributeError | NameError), raised.value


def test_every_check_catches_a_fault() -> None:
    caught = {check for mutant in MUTANTS.values() for check in mutant.caught_by}
    assert set(CHECKS) - caught == set()
    assert caught - set(CHECKS) == set()
