"""Mistakes that people make, and what each is told: what was asked, what is possible, what to do.

A message is one line on stderr, without a traceback; its parts are given here in their order.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

MOCK = "evalution_enginekit.mock:Mock"
TEST = {"type": "generation", "data": "rows.jsonl", "prompt": "question", "target": "answer"}
FAULTY = """
from dataclasses import dataclass
from evalution_core import EngineRuntimeError, EngineUnavailableError, LoglikelihoodOutput
from evalution_core import speed_only
from evalution_enginekit.mock import Mock, MockSession

@dataclass(slots=True)
class NaN(Mock):
    def build(self, model):
        return NaNSession("m", 512, 8)

class NaNSession(MockSession):
    def loglikelihood_continuous(self, requests, *, batch_size=None):
        for key, answer in super().loglikelihood_continuous(requests, batch_size=batch_size):
            yield key, LoglikelihoodOutput(float("nan"), True, 1)

@dataclass(slots=True)
class Dying(Mock):
    dies: bool = speed_only(default=False)

    def build(self, model):
        return DyingSession(self.dies, self.max_model_len)

class DyingSession(MockSession):
    def __init__(self, dies, max_model_len):
        super().__init__("m", max_model_len, 8)
        self.dies = dies

    def generate_continuous(self, requests, *, batch_size=None):
        for number, event in enumerate(super().generate_continuous(requests)):
            if self.dies and number == 5:
                raise EngineRuntimeError("the runtime died")
            yield event

@dataclass(slots=True)
class Needs(Mock):
    def build(self, model):
        raise EngineUnavailableError('rt is not installed; pip install "rt>=3"')
"""


@pytest.fixture
def write(folder: Path) -> Any:
    """Writes `spec.yaml`, a right one but for what is given; None leaves a section out."""
    (folder / "faulty.py").write_text(FAULTY, encoding="utf-8")

    def spec(**sections: Any) -> None:
        whole = {"engine": MOCK, "model": "m", "tests": [TEST], **sections}
        kept = {name: value for name, value in whole.items() if value is not None}
        (folder / "spec.yaml").write_text(yaml.safe_dump(kept), encoding="utf-8")

    return spec


def assert_says(done: Any, code: int, parts: Sequence[str]) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1, done.stderr
    pattern = ".*".join(re.escape(part) for part in parts)
    assert re.search(pattern, told[0]), told[0]


MISTAKES: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "misuse.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("verb", ["run", "validate"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_spec(command_line: Any, write: Any, folder: Path, name: str, verb: str) -> None:
    mistake = MISTAKES[name]
    test = {**TEST, **mistake.get("test", {})}
    write(**{"tests": [test], **mistake.get("spec", {})})
    assert_says(command_line(verb, "spec.yaml"), 2, mistake["told"])
    assert not (folder / "runs").exists()


FILES: dict[str, tuple[bytes, Sequence[str]]] = {
    "no YAML": (b"engine: [\n", ["spec.yaml, line 2, column 1", "not valid YAML"]),
    "a tab": (b"engine:\n\ttype: x\n", ["spec.yaml, line 2, column 1", "not valid YAML"]),
    "a key twice": (
        b"engine: a\nengine: b\n",
        ["spec.yaml, line 2, column 1", "the key 'engine' stands here a second time"],
    ),
    "nothing": (b"", ["spec.yaml", "a spec must be a mapping of names to values", "is empty"]),
    "a list": (b"- 1\n", ["spec.yaml", "a spec must be a mapping", "but it is a list"]),
    "bytes": (b"\xff\xfe\x00", ["spec.yaml, line 1 isn't UTF-8 text"]),
}


@pytest.mark.parametrize("mistake", FILES)
def test_a_file_that_is_no_spec(command_line: Any, folder: Path, mistake: str) -> None:
    written, parts = FILES[mistake]
    (folder / "spec.yaml").write_bytes(written)
    assert_says(command_line("run", "spec.yaml"), 2, parts)


COMMANDS: dict[str, tuple[Sequence[str], int, Sequence[str]]] = {
    "no such spec": (["run", "none.yaml"], 2, ["there is no spec file none.yaml"]),
    "a folder as spec": (["run", "."], 2, ["is a folder; name the spec file in it"]),
    "an unknown built-in": (
        ["run", "builtin:tiny/quikstart"],
        2,
        ["builtin:tiny has no 'quikstart'", "did you mean 'quickstart'?", "(it has: "],
    ),
    "a suite to be shown": (["suites", "hellaswg"], 2, ["did you mean 'hellaswag'?"]),
    "an engine to be shown": (
        ["engines", "TensorRTLLM"],
        2,
        ["pip install evalution-tensorrt-llm"],
    ),
    "an engine for the doctor": (
        ["doctor", "tensorrtlm"],
        2,
        ["no engine 'tensorrtlm'", "did you mean 'TensorRTLLM'?", "(installed:"],
    ),
    "a run that isn't there": (["show", "nowhere"], 2, ["nowhere"]),
    "a run to compare that isn't there": (["compare", "nowhere", "there"], 2, ["nowhere"]),
    "an empty output": (
        ["run", "spec.yaml", "--output", ""],
        2,
        ["output is empty; name a folder"],
    ),
    "an empty output of a measurement": (
        ["noise", "spec.yaml", "--output", ""],
        2,
        ["output is empty; name a folder"],
    ),
    "an empty model": (
        ["run", "spec.yaml", "--model", ""],
        2,
        ["--model is empty; name a model"],
    ),
    "a spec in the place of a run": (
        ["show", "spec.yaml"],
        2,
        ["spec.yaml is no results.json of a run; name the folder of one"],
    ),
    "a file as output": (
        ["run", "spec.yaml", "--output", "rows.jsonl"],
        2,
        ["rows.jsonl is a file", "name another --output"],
    ),
}


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_wrong_argument(command_line: Any, write: Any, mistake: str) -> None:
    words, code, parts = COMMANDS[mistake]
    write()
    assert_says(command_line(*words), code, parts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["validate"], "Missing argument 'SPEC'"),
        (["run", "spec.yaml", "--limit", "0"], "Invalid value for '--limit'"),
        (["run", "spec.yaml", "--limit", "many"], "Invalid value for '--limit'"),
        (["run", "spec.yaml", "--outptu", "x"], "No such option: --outptu"),
        (["rum", "spec.yaml"], "no command and no suite is named 'rum'; did you mean 'run'?"),
        (["eval", "spec.yaml"], "no command and no suite is named 'eval'; did you mean 'run'?"),
        (["report", "one", "-o", "x"], "there is no option -o: write --output FILE"),
        (["compare", "one"], "Missing argument 'B'"),
        (["doctor", "--patience", "0"], "Invalid value for '--patience'"),
        (["gate", "a", "b", "--loss", "inf"], "--loss must be a finite number, got inf"),
        (["parity", "a", "b", "--tolerance", "nan"], "--tolerance"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_isn_t_one(
    command_line: Any, write: Any, words: list[str], message: str
) -> None:
    write()
    done = command_line(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_line_of_rows_that_lacks_a_column(command_line: Any, write: Any, folder: Path) -> None:
    write()
    with (folder / "rows.jsonl").open("a", encoding="utf-8") as rows:
        rows.write('{"question": "who?"}\n')
    parts = ["suite 'rows'", "rows.jsonl, line 31", "no column 'answer'", "(columns: question)"]
    assert_says(command_line("run", "spec.yaml"), 2, parts)


def test_an_engine_whose_runtime_is_missing(command_line: Any, write: Any) -> None:
    write(engine="faulty:Needs")
    done = command_line("run", "spec.yaml", "--output", "out", "--allow-code")
    assert_says(done, 1, ['rt is not installed; pip install "rt>=3"'])
    assert "hint: `evalution doctor` shows which engines work here" in done.stderr


def test_a_number_that_is_none(command_line: Any, write: Any, folder: Path) -> None:
    write(
        engine="faulty:NaN",
        tests=[
            {
                "type": "multiple_choice",
                "data": "rows.jsonl",
                "prompt": "question",
                "choices": "choices",
                "target": "right",
            }
        ],
    )
    done = command_line("run", "spec.yaml", "--output", "out", "--allow-code")
    assert done.returncode == 3
    assert "30 of 30 samples failed" in done.stderr
    assert "row 0: EngineRuntimeError: the engine gave NaN as a log-probability" in done.stderr
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    assert found["suites"][0]["failed"] == 30
    assert found["suites"][0]["metrics"]["acc"]["value"] == 0.0


def test_the_folder_of_another_spec(command_line: Any, write: Any) -> None:
    write(engine={"type": "faulty:Dying", "dies": True})
    done = command_line("run", "spec.yaml", "--output", "out", "--allow-code")
    assert_says(done, 1, ["the runtime died"])
    write(engine={"type": "faulty:Dying", "max_model_len": 300})
    done = command_line("run", "spec.yaml", "--output", "out", "--allow-code")
    assert_says(done, 2, ["out", "max_model_len was 512, now 300", "--fresh"])
    write(engine="faulty:Dying")
    done = command_line("run", "spec.yaml", "--output", "out", "--allow-code")
    assert done.returncode == 0, done.stderr


def test_the_folder_of_a_finished_run(command_line: Any, write: Any) -> None:
    write()
    words = ["run", "spec.yaml", "--output", "out", "--limit", "2"]
    first, again = command_line(*words), command_line(*words)
    assert (first.returncode, first.stdout) == (again.returncode, again.stdout)
    assert "2 of 2 were finished before" in again.stderr
    parts = ["out holds a run of another spec", "limit was 2, now 1", "--fresh"]
    assert_says(command_line(*words[:-1], "1"), 2, parts)


def test_a_file_in_the_place_of_a_page_or_a_schema(
    command_line: Any, write: Any, folder: Path
) -> None:
    write()
    assert command_line("run", "spec.yaml", "--output", "out", "--limit", "2").returncode == 0
    for words, refusal in (
        (["report", "out", "--output", "out/results.json"], "is there already, and no page"),
        (["schema", "--output", "rows.jsonl"], "is there already, and no JSON Schema"),
    ):
        assert_says(command_line(*words), 2, [words[-1], refusal, "another --output"])
    for _ in range(2):
        assert command_line("report", "out", "--output", "a.html").returncode == 0
    (folder / "a.json").write_text('{"$schema": "an older one"}')
    assert command_line("schema", "--output", "a.json").returncode == 0


def test_the_folder_of_another_kind_of_result(command_line: Any, write: Any, folder: Path) -> None:
    write()
    assert command_line("run", "spec.yaml", "--output", "out", "--limit", "2").returncode == 0
    done = command_line("noise", "spec.yaml", "--output", "out")
    assert_says(done, 2, ["out already holds a results.json", "name another --output"])
    (folder / "noise").mkdir()
    (folder / "noise" / "noise.json").write_text("{}", encoding="utf-8")
    done = command_line("run", "spec.yaml", "--output", "noise")
    assert_says(done, 2, ["noise already holds a noise.json", "name another --output"])


def test_a_limit_of_one_text(command_line: Any, write: Any) -> None:
    write()
    words = ["--text", "rows.jsonl", "--limit", "2"]
    done = command_line("fidelity", "spec.yaml", "spec.yaml", *words)
    assert_says(done, 2, ["--limit counts the rows of suites, and --text is one text"])


@pytest.fixture
def locked(folder: Path) -> Path:
    """A folder that this user can't write into."""
    found = folder / "locked"
    found.mkdir(mode=0o500)
    if not os.access(found, os.W_OK):
        return found
    if sys.platform == "linux":
        return Path("/sys")  # no user may make a folder there
    pytest.skip("this user may write into any folder")


def test_a_folder_that_can_t_be_written(command_line: Any, write: Any, locked: Path) -> None:
    write()
    done = command_line("run", "spec.yaml", "--output", str(locked / "out"))
    assert_says(
        done, 2, [f"the run folder {locked / 'out'} can't be written: ", "another --output"]
    )


def test_an_output_below_a_file(command_line: Any, write: Any) -> None:
    write()
    done = command_line("run", "spec.yaml", "--output", "rows.jsonl/out")
    assert_says(done, 2, ["rows.jsonl/out can't be written: Not a directory", "another --output"])


def test_results_of_a_newer_version(command_line: Any, write: Any, folder: Path) -> None:
    write()
    assert command_line("run", "spec.yaml", "--output", "out", "--limit", "2").returncode == 0
    file = folder / "out" / "results.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**found, "schema_version": 99}), encoding="utf-8")
    for words in (["show", "out"], ["compare", "out", "out"]):
        assert_says(command_line(*words), 2, ["out", "99", "1", "upgrade"])
