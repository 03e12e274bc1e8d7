"""`evalution doctor` on engines that work, crash, hang or lack something."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution.doctor.engines import (
    PATIENCE,
    ProbeOptions,
    choose_engines,
    examine_engine,
    find_requirements,
)
from evalution.doctor.probe import ANSWER, LOGPROB, PROMPT, TINY, probe_engine
from evalution_core import ConfigurationError
from evalution_core.builtins import builtin_path
from evalution_core.discovery import ENGINES, EngineEntry, available
from evalution_core.plugins import PluginEntry

ENGINE = """
from dataclasses import dataclass
from evalution_core import BaseEngine, Capability, ConfigurationError, EngineUnavailableError
from evalution_enginekit.mock import Mock

print("a runtime that prints while it is imported")

@dataclass(slots=True, kw_only=True)
class {name}(Mock):
"""
GOOD = """
    device: str = "cuda:0"

    def describe_runtime(self):
        return {"version": "1.2", "device": self.device}
"""
LACKING = """
    def describe_runtime(self):
        raise EngineUnavailableError('rt is not installed; pip install "rt>=3"')
"""
LACKING_IN_BUILD = "    def build(self, model):\n        import no_such_runtime\n"
NEEDY = "    server: str\n"
SERVING = """
    address: str = "http://127.0.0.1:1"

    def default_model(self):
        raise EngineUnavailableError(f"no server answers at {self.address}")
"""
CONVERTED = """
    def build(self, model):
        if model.path == "builtin:tiny":
            raise ConfigurationError("it loads converted models alone")
        return Mock.build(self, model)
"""
SILENT = """
    def build(self, model):
        session = Mock.build(self, model)
        session._score = lambda ids, start: __import__("evalution_enginekit").TokenScore(
            [float("nan")] * (len(ids) - start), True
        )
        return session
"""
GENERATING = """
    def build(self, model):
        session = Mock.build(self, model)
        facts = {"capabilities": frozenset({Capability.GENERATE})}
        session.__class__ = type("Writing", (type(session),), facts)
        return session
"""
CRASHING_IN_BUILD = "    def build(self, model):\n        import os; os.abort()\n"
LEAKING = """
    api_key: str = ""
    dies: bool = False

    def __post_init__(self):
        if not self.dies:
            raise OSError(f"the key {self.api_key} is not accepted")

    def build(self, model):
        import os
        os.write(2, f"connecting with {self.api_key} and {os.environ['ACME_TOKEN']}".encode())
        os._exit(3)
"""
UNRESOLVED = "    device: 'Nowhere' = None\n"
ABSTRACT = "from evalution_core import BaseEngine\nclass Abstract(BaseEngine): ...\n"
PLAIN = """
from evalution_core import BaseEngine
class Plain(BaseEngine):
    def build(self, model): ...
"""
CRASHING = """
import os, signal
os.write(2, b"the driver is too old\\n")
os.kill(os.getpid(), signal.SIGSEGV)
"""
LEAVING = "import os; os._exit(0)\n"
HANGING = "import threading; open('reached', 'w'); threading.Event().wait()\n"
LEAVING_A_CHILD = """
import os, subprocess, sys
held = os.open("alive", os.O_WRONLY)
sleep = "import threading; threading.Event().wait()"
subprocess.Popen([sys.executable, "-c", sleep], pass_fds=[held])
os._exit(0)
"""


def entry(folder: Path, name: str, code: str) -> EngineEntry:
    """Writes a module; code that is indented is the body of an engine's class."""
    if code.lstrip("\n").startswith(" "):
        code = ENGINE.replace("{name}", name.title()) + code
    (folder / f"doctored_{name}.py").write_text(code, encoding="utf-8")
    return PluginEntry(name.title(), f"doctored_{name}:{name.title()}", None, None, ENGINES)


def probe(entry: EngineEntry, model: str | None = None, **options: Any) -> dict[str, Any]:
    """Facts of an engine that is tried in this process, which takes no second."""
    found: dict[str, Any] = {}
    for facts in probe_engine(entry, options, model):
        found |= facts
    return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_engine_is_ok_once_it_has_answered(site: Path) -> None:
    health = examine_engine(entry(site, "good", GOOD), ProbeOptions(model="m"))
    assert health.status == "ok"
    assert health.proof == "17 tokens of m scored, -102.9482 nats"
    assert health.runtime == {"version": "1.2", "device": "cuda:0"}
    assert "generate" in health.capabilities
    assert "doctored_good" not in sys.modules


def test_known_answer_is_the_stored_one() -> None:
    stored = json.loads(builtin_path(TINY, "reference_values").read_text("utf-8"))["scoring"]
    (case,) = [
        case for case in stored if (case["context"], case["continuation"]) == (PROMPT, ANSWER)
    ]
    assert sum(case["token_logprobs"]) == pytest.approx(LOGPROB, abs=1e-5)


def test_wrong_score_of_the_known_sequence_is_a_fault(site: Path) -> None:
    assert probe(entry(site, "wrong", "    pass\n"))["error"] == (
        "wrong numbers: 17 tokens of builtin:tiny scored, -101.5169 nats, and -0.3140 nats are "
        "right"
    )


def test_score_that_is_no_number_is_a_fault(site: Path) -> None:
    assert "proof" not in (found := probe(entry(site, "silent", SILENT), "m"))
    assert "nan" in found["error"]


def test_engine_that_can_not_score_is_asked_to_generate(site: Path) -> None:
    found = probe(entry(site, "writing", GENERATING), "m")
    assert found["proof"].startswith("m completed a prompt with '")
    found = probe(entry(site, "writing", GENERATING))
    assert found["error"].endswith(r"and ' 3 + 4 = 7\n#### 7' are right")


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("needy", NEEDY, "engine Needy needs the option 'server'"),
        ("serving", SERVING, "it asks a server, and none was named"),
        ("converted", CONVERTED, "it loads converted models alone"),
    ],
)
def test_engine_that_can_not_be_asked_is_not_tried(
    site: Path, name: str, code: str, reason: str
) -> None:
    found = probe(entry(site, name, code))
    assert reason in found["untried"]
    assert not {"proof", "error"} & found.keys()


def test_named_server_is_asked(site: Path) -> None:
    found = probe(entry(site, "serving", SERVING), address="http://127.0.0.1:2")
    assert found["error"] == "no server answers at http://127.0.0.1:2"


def test_named_model_that_can_not_be_loaded_is_a_fault(site: Path) -> None:
    converted = entry(site, "converted", CONVERTED)
    assert "scored" in probe(converted, "m")["proof"]
    assert "converted models" in probe(converted, TINY)["error"]


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("raising", "1 / 0", "can't be loaded: ZeroDivisionError: division by zero"),
        ("exiting", "raise SystemExit(3)", "can't be loaded: SystemExit: 3"),
        ("foreign", "Foreign = 3", "isn't a BaseEngine, but 3"),
        ("importing", "import no_such_runtime", "No module named 'no_such_runtime'"),
        ("abstract", ABSTRACT, "engine 'Abstract' is abstract: it lacks build"),
        ("plain", PLAIN, "engine Plain must be a dataclass; put @dataclass above it"),
        ("unresolved", UNRESOLVED, "the type of an option can't be resolved"),
        ("lacking", LACKING, 'rt is not installed; pip install "rt>=3"'),
        ("unbuilt", LACKING_IN_BUILD, "ModuleNotFoundError: No module named 'no_such_runtime'"),
    ],
)
def test_broken_engine_is_reported_with_its_cause(
    site: Path, name: str, code: str, problem: str
) -> None:
    assert problem in probe(entry(site, name, code))["error"]


def test_error_of_an_engine_holds_no_secret(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", "t0ken-t0ken")
    leaking, options = entry(site, "leaking", LEAKING), {"api_key": "s3cret-s3cret"}
    health = examine_engine(leaking, ProbeOptions(options))
    assert health.problem == "making it: OSError: the key *** is not accepted"
    health = examine_engine(leaking, ProbeOptions({**options, "dies": True}))
    assert health.problem == (
        "it ended the process with status 3 during loading builtin:tiny; it printed last: "
        "connecting with *** and ***"
    )


def test_process_that_ends_at_import_is_reported(site: Path) -> None:
    health = examine_engine(entry(site, "leaving", LEAVING))
    assert (health.status, health.problem) == ("broken", "it ended the process during its import")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_crash_is_reported_with_its_place_and_the_last_printed_line(site: Path) -> None:
    health = examine_engine(entry(site, "crashing", CRASHING))
    assert health.problem == (
        f"it crashed with SIGSEGV during its import ({site}/doctored_crashing.py, line 4); it "
        "printed last: the driver is too old"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_crash_of_a_build_keeps_what_was_found_before(site: Path) -> None:
    health = examine_engine(entry(site, "aborting", GOOD + CRASHING_IN_BUILD))
    assert "it crashed with SIGABRT during loading builtin:tiny" in (health.problem or "")
    assert health.runtime == {"version": "1.2", "device": "cuda:0"}


@pytest.mark.skipif(sys.platform == "win32", reason="needs a FIFO and POSIX signals")
def test_hanging_import_is_ended_after_the_time_limit(
    site: Path, end_when_reached: Callable[[float], None]
) -> None:
    end_when_reached(PATIENCE)
    health = examine_engine(entry(site, "hanging", HANGING))
    assert health.problem == (
        f"it was not done after {PATIENCE} s, during its import ({site}/doctored_hanging.py, "
        "line 1)"
    )


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
    assert examine_engine(mock, ProbeOptions(model="m")).status == "ok"


def test_engine_with_the_name_of_another_says_how_to_ask_for_it(site: Path, plugin: Any) -> None:
    code = ENGINE.replace("{name}", "Shadow") + GOOD
    plugin(
        "shadow", "[evalution.engines]\nReference = doctored_shadow:Shadow\n", doctored_shadow=code
    )
    healths = [
        examine_engine(found, ProbeOptions(model="m"))
        for found in choose_engines(["shadow-plugin/Reference"])
    ]
    assert [(health.name, health.note) for health in healths] == [
        (
            "shadow-plugin/Reference",
            "evalution-reference also has an engine Reference; name this one "
            "shadow-plugin/Reference",
        )
    ]
    (ours,) = choose_engines(["Reference"])
    assert isinstance(ours, PluginEntry)
    assert ours.distribution == "evalution-reference"


def test_missing_requirement_is_reported_with_its_command(site: Path) -> None:
    info = site / "lacky-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lacky\nVersion: 1.0\n"
        "Requires-Dist: pytest>=1\nRequires-Dist: no-such-thing>=2,<3\n"
        "Requires-Dist: never; python_version < '3'\nRequires-Dist: extra; extra == 'x'\n"
    )
    (info / "entry_points.txt").write_text("[evalution.engines]\nLacky = doctored_lacky:Lacky\n")
    (site / "doctored_lacky.py").write_text(ENGINE.replace("{name}", "Lacky") + GOOD)
    (health,) = map(examine_engine, choose_engines(["lacky"]))
    assert (health.problem or "").startswith("no-such-thing is not installed; wrong numbers: ")
    assert health.remedy == 'pip install "no-such-thing<3,>=2"'
    assert set(health.needs) == {"pytest", "no-such-thing"}
    (health,) = (
        examine_engine(found, ProbeOptions(model="m")) for found in choose_engines(["lacky"])
    )
    assert (health.status, health.needs["no-such-thing"]) == ("ok", None)


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
    assert health.status == "missing"
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
    assert "12 tokens of builtin:tiny scored, -0.3140 nats, as it should be" in done.stdout
    assert "TensorRTLLM: not installed; pip install evalution-tensorrt-llm" in done.stdout
    assert f"({sys.executable})" in done.stdout


def test_command_prints_json(command_line: Any) -> None:
    done = command_line("doctor", "Reference", "--json")
    found = json.loads(done.stdout)
    assert found["machine"]["executable"] == sys.executable
    (engine,) = found["engines"]
    assert (engine["name"], engine["status"]) == ("Reference", "ok")
    assert set(engine["needs"]) >= {"evalution-core", "numpy"}


def test_command_fails_if_no_engine_works(command_line: Any, assert_says: Any) -> None:
    done = command_line("doctor", "TensorRTLLM")
    assert done.returncode == 1
    assert_says(command_line("doctor", "VLM"), 2, "did you mean 'VLLM'?")


def test_command_says_how_to_try_what_was_not_tried(command_line: Any) -> None:
    done = command_line("doctor", "Replicas")
    assert done.returncode == 1
    assert "-- Replicas (evalution-runner " in done.stdout
    assert "engine Replicas needs the option 'engine'" in done.stdout
    assert done.stdout.endswith(
        "-- is installed, and not tried; to try one: evalution doctor NAME --model PATH -o "
        "KEY=VALUE (-o base_url=URL of a server)\n"
    )


def test_command_takes_options_and_a_model(command_line: Any, assert_says: Any) -> None:
    mock = "evalution_enginekit.mock:Mock"
    done = command_line("doctor", mock, "--model", "m", "-o", "max_model_len=8")
    assert "!! evalution_enginekit.mock:Mock" in done.stdout
    assert "8" in done.stdout
    assert_says(command_line("doctor", mock, "-o", "x"), 2, "--option 'x' is not KEY=VALUE")
    done = command_line("doctor", "-o", "batch_size=1")
    assert_says(done, 2, "--option is for one engine; name that engine alone")


def test_all_installed_engines_work_here() -> None:
    # Other tests register engines of their own in this process.
    installed = [entry.name for entry in available() if entry.distribution is not None]
    healths = map(examine_engine, choose_engines(installed))
    found = {health.name: health for health in healths}
    assert found["Reference"].status == "ok"
    assert {name: health.problem for name, health in found.items() if health.problem} == {}
