"""`evalution doctor` on engines that work, crash, hang or lack something."""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest

from evalution.doctor.engines import choose_engines, examine_engine, find_requirements
from evalution_core import ConfigurationError
from evalution_core.discovery import ENGINES, EngineEntry, available
from evalution_core.plugins import PluginEntry

GOOD = """
import sys
from dataclasses import dataclass
from evalution_enginekit.mock import Mock

print("a runtime that prints while it is imported")

@dataclass(slots=True)
class Good(Mock):
    device: str = "cuda:0"

    def describe_runtime(self):
        return {"version": "1.2", "device": self.device}
"""
LACKING = """
from dataclasses import dataclass
from evalution_core import EngineUnavailableError
from evalution_enginekit.mock import Mock

@dataclass(slots=True)
class Lacking(Mock):
    def describe_runtime(self):
        raise EngineUnavailableError('rt is not installed; pip install "rt>=3"')
"""
NEEDY = """
from dataclasses import dataclass
from evalution_enginekit.mock import Mock

@dataclass(slots=True, kw_only=True)
class Needy(Mock):
    server: str

    def describe_runtime(self):
        raise AssertionError("nothing is known of the server")
"""
CRASHING = """
import os, signal
os.write(2, b"the driver is too old\\n")
os.kill(os.getpid(), signal.SIGSEGV)
"""
LEAVING = "import os; os._exit(0)\n"
HANGING = "import threading; threading.Event().wait()\n"
LEAVING_A_CHILD = """
import os, subprocess, sys
held = os.open("alive", os.O_WRONLY)
sleep = "import threading; threading.Event().wait()"
subprocess.Popen([sys.executable, "-c", sleep], pass_fds=[held])
os._exit(0)
"""


def entry(folder: Path, name: str, code: str) -> EngineEntry:
    (folder / f"doctored_{name}.py").write_text(code, encoding="utf-8")
    return PluginEntry(name.title(), f"doctored_{name}:{name.title()}", None, None, ENGINES)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_runtime_and_capabilities_are_reported(site: Path) -> None:
    health = examine_engine(entry(site, "good", GOOD))
    assert health.works
    assert health.runtime == {"version": "1.2", "device": "cuda:0"}
    assert "generate" in health.capabilities
    assert "doctored_good" not in sys.modules


def test_missing_runtime_is_the_engine_s_own_message(site: Path) -> None:
    health = examine_engine(entry(site, "lacking", LACKING))
    assert (health.works, health.problem) == (False, 'rt is not installed; pip install "rt>=3"')
    assert health.remedy is None


def test_engine_that_needs_options_works_without_a_runtime(site: Path) -> None:
    health = examine_engine(entry(site, "needy", NEEDY))
    assert (health.works, health.runtime) == (True, None)


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("raising", "1 / 0", "can't be loaded: ZeroDivisionError: division by zero"),
        ("foreign", "Foreign = 3", "isn't a BaseEngine, but 3"),
        ("leaving", LEAVING, "it ended the process while it was imported"),
        ("importing", "import no_such_runtime", "No module named 'no_such_runtime'"),
    ],
)
def test_broken_engine_is_reported_with_its_cause(
    site: Path, name: str, code: str, problem: str
) -> None:
    health = examine_engine(entry(site, name, code))
    assert not health.works
    assert problem in (health.problem or "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_crash_is_reported_with_the_last_printed_line(site: Path) -> None:
    health = examine_engine(entry(site, "crashing", CRASHING))
    assert health.problem == (
        "it crashed with SIGSEGV while it was imported; it printed last: the driver is too old"
    )


def test_hanging_import_is_ended_after_the_time_limit(site: Path) -> None:
    health = examine_engine(entry(site, "hanging", HANGING), patience=1)
    assert health.problem == "importing it was not done after 1 s"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a FIFO and process groups")
def test_processes_started_by_an_import_are_ended(site: Path) -> None:
    os.mkfifo(site / "alive")
    alive = os.open(site / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        examine_engine(entry(site, "parent", LEAVING_A_CHILD))
        # readable once nobody holds the other end
        readable, _, _ = select.select([alive], [], [], 60)
        assert readable
        assert os.read(alive, 1) == b""
    finally:
        os.close(alive)


def test_files_of_the_working_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    monkeypatch.chdir(tmp_path)
    mock = PluginEntry("Mock", "evalution_enginekit.mock:Mock", None, None, ENGINES)
    assert examine_engine(mock).works


def test_missing_requirement_is_reported_with_its_command(site: Path) -> None:
    info = site / "lacky-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lacky\nVersion: 1.0\n"
        "Requires-Dist: pytest>=1\nRequires-Dist: no-such-thing>=2,<3\n"
        "Requires-Dist: never; python_version < '3'\nRequires-Dist: extra; extra == 'x'\n"
    )
    (info / "entry_points.txt").write_text("[evalution.engines]\nLacky = doctored_lacky:Lacky\n")
    code = GOOD.replace("Good", "Lacky")
    (site / "doctored_lacky.py").write_text(code)
    (health,) = map(examine_engine, choose_engines(["lacky"]))
    assert health.problem == "no-such-thing is not installed"
    assert health.remedy == 'pip install "no-such-thing<3,>=2"'
    assert set(health.needs) == {"pytest", "no-such-thing"}


def test_requirement_in_a_wrong_version_is_reported(site: Path) -> None:
    info = site / "olden-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: olden\nVersion: 1.0\nRequires-Dist: pytest<1\n"
    )
    (need,) = find_requirements("olden")
    assert need.complaint.startswith("it needs pytest<1, and ")
    assert find_requirements("no-such-distribution") == []


def test_known_engine_that_is_not_installed_has_its_command() -> None:
    (health,) = map(examine_engine, choose_engines(["tensorrt_llm"]))
    assert not health.is_installed
    assert health.remedy == "pip install evalution-tensorrt-llm"


def test_unknown_name_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"no engine .Referense. .*did you mean .Reference."
    ):
        choose_engines(["Referense"])


def test_command_shows_machine_and_engine(command_line: Any) -> None:
    done = command_line("doctor", "Reference", "TensorRTLLM")
    assert done.returncode == 0, done.stderr
    assert "ok Reference (evalution-reference " in done.stdout
    assert "TensorRTLLM: not installed; pip install evalution-tensorrt-llm" in done.stdout
    assert f"({sys.executable})" in done.stdout


def test_command_prints_json(command_line: Any) -> None:
    done = command_line("doctor", "Reference", "--json")
    found = json.loads(done.stdout)
    assert found["machine"]["executable"] == sys.executable
    (engine,) = found["engines"]
    assert (engine["name"], engine["works"]) == ("Reference", True)
    assert set(engine["needs"]) >= {"evalution-core", "numpy"}


def test_command_fails_if_no_engine_works(command_line: Any, assert_says: Any) -> None:
    done = command_line("doctor", "TensorRTLLM")
    assert done.returncode == 1
    assert_says(command_line("doctor", "VLM"), 2, "did you mean 'VLLM'?")


def test_all_installed_engines_work_here() -> None:
    # Other tests register engines of their own in this process.
    installed = [entry.name for entry in available() if entry.distribution is not None]
    healths = map(examine_engine, choose_engines(installed))
    found = {health.name: health for health in healths}
    assert found["Reference"].works
    assert {name: health.problem for name, health in found.items() if not health.works} == {}
