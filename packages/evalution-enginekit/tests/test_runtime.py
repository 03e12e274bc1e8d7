"""The border to a runtime: what a user reads when it is missing, too old or broken."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalution_core import EngineRuntimeError, EngineUnavailableError, InvalidRequestError
from evalution_enginekit import import_runtime, runtime_errors
from evalution_enginekit.runtime import is_in_range, shorten_error

INSTALL = "pip install evalution-toyrun"


@pytest.fixture
def toyrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module `toyrun`, installed as `toyrun-cpu` 1.4.2.post1+cpu."""
    folder = tmp_path / "toyrun_cpu-1.4.2.post1+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: toyrun-cpu\nVersion: 1.4.2.post1+cpu\n"
    )
    module = tmp_path / "toyrun.py"
    module.write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toyrun", raising=False)
    yield module
    sys.modules.pop("toyrun", None)


@pytest.mark.usefixtures("toyrun")
def test_any_of_several_distributions_may_provide_the_runtime() -> None:
    module = import_runtime(
        "toyrun", ">=1.4,<2", distributions=("toyrun", "toyrun-cpu"), install=INSTALL
    )
    assert module.answer == 42


def test_a_missing_runtime_names_what_to_install() -> None:
    with pytest.raises(
        EngineUnavailableError, match=r"^toyrun is not installed; pip install evalu"
    ):
        import_runtime("toyrun", ">=1", install=INSTALL)
    with pytest.raises(EngineUnavailableError, match=r"^toyrun or toyrun-cpu is not installed"):
        import_runtime("toyrun", ">=1", distributions=("toyrun", "toyrun-cpu"), install=INSTALL)


@pytest.mark.usefixtures("toyrun")
def test_a_version_out_of_range_names_both_versions() -> None:
    with pytest.raises(
        EngineUnavailableError,
        match=r"^needs toyrun-cpu>=1\.5,<2, found toyrun-cpu 1\.4\.2\.post1\+cpu; pip install",
    ):
        import_runtime("toyrun", ">=1.5,<2", distributions=("toyrun-cpu",), install=INSTALL)


def test_a_runtime_that_does_not_import_keeps_its_own_error(toyrun: Path) -> None:
    toyrun.write_text("raise OSError('libtoy.so: cannot open')\n")
    with pytest.raises(
        EngineUnavailableError, match=r"can't be imported: OSError: libtoy\.so: cannot open"
    ) as raised:
        import_runtime("toyrun", ">=1", distributions=("toyrun-cpu",), install=INSTALL)
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("found", "versions", "inside"),
    [
        ("1.4.2", ">=1.4", True),
        ("1.4", ">=1.4.0", True),
        ("1.4.2.post1+cpu", "==1.4.2", True),
        ("1.4.2rc1", ">=1.4.2", True),
        ("1.10", ">=1.9,<2", True),
        ("2.0", ">=1.9,<2", False),
        ("1.8.9", ">=1.9,<2", False),
        ("1.9", "!=1.9.0", False),
        ("1.9.1", "!=1.9.0", True),
        ("1.9", ">1.9", False),
        ("1.9.1", ">1.9", True),
        ("1.9", "<=1.9", True),
        ("1.9", " >= 1.0 , < 2 ", True),
        ("unknown", ">=0.1", False),
    ],
)
def test_release_numbers_are_compared_part_by_part(found: str, versions: str, inside: bool) -> None:
    assert is_in_range(found, versions) is inside


def test_malformed_version_bound_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not a version bound: '~=1'"):
        is_in_range("1.0", "~=1")


def test_runtime_error_is_chained_and_redacted() -> None:
    with (
        pytest.raises(EngineRuntimeError, match=r"^decoding failed: KeyError: ") as raised,
        runtime_errors("decoding"),
    ):
        raise KeyError("https://user:hunter2@host/v1")
    assert isinstance(raised.value.__cause__, KeyError)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError, SystemExit])
def test_every_other_exception_of_a_runtime_becomes_its_error(kind: type[BaseException]) -> None:
    with pytest.raises(EngineRuntimeError) as raised, runtime_errors("decoding"):
        raise kind
    assert isinstance(raised.value.__cause__, kind)


def test_own_errors_and_interrupts_pass_unchanged() -> None:
    own = InvalidRequestError("bad")
    with pytest.raises(InvalidRequestError) as raised, runtime_errors("decoding"):
        raise own
    assert raised.value is own
    with pytest.raises(KeyboardInterrupt), runtime_errors("decoding"):
        raise KeyboardInterrupt


def test_long_message_is_shortened_in_the_middle() -> None:
    assert shorten_error(ValueError("no such architecture")) == "no such architecture"
    told = shorten_error(ValueError(f"begins {'x' * 5000} ends"))
    assert told.startswith("begins x")
    assert told.endswith("x ends")
    assert len(told) < 700
