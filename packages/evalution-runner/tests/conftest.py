from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evalution.cli import app
from evalution.fidelity import result as fidelity
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    GenerationOutput,
    LoglikelihoodOutput,
    Model,
    RollingLoglikelihoodOutput,
)

Events = Iterator[tuple[Hashable, Any]]


class ScriptedSession(BaseInferenceSession):
    """Answers every request rightly unless `script` rearranges the stream of answers."""

    def __init__(self, script: Callable[[Events], Events] = iter) -> None:
        self.script = script
        self.calls: list[str] = []

    def generate(self, requests: Sequence[Any], *, batch_size: int | None = None) -> list[Any]:
        return [GenerationOutput(r.prompt or "", "4", r.metadata) for r in requests]

    def loglikelihood(self, requests: Sequence[Any], *, batch_size: int | None = None) -> list[Any]:
        return [LoglikelihoodOutput(-float(len(r.continuation)), True, 1) for r in requests]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], *, batch_size: int | None = None
    ) -> list[Any]:
        return [RollingLoglikelihoodOutput(-float(len(r.text)), len(r.text)) for r in requests]

    def generate_continuous(
        self, requests: Iterable[tuple[Any, Any]], *, batch_size: int | None = None
    ) -> Events:
        return self.script((key, self.generate([request])[0]) for key, request in requests)

    def loglikelihood_continuous(
        self, requests: Iterable[tuple[Any, Any]], *, batch_size: int | None = None
    ) -> Events:
        return self.script((key, self.loglikelihood([request])[0]) for key, request in requests)

    def gc(self) -> None:
        self.calls.append("gc")

    def close(self) -> None:
        self.calls.append("close")


@dataclass(slots=True)
class Scripted(BaseEngine):
    """Builds the session it was given; `failures` builds fail first."""

    session: Any = None
    failures: list[BaseException] = field(default_factory=list)

    def build(self, model: Model) -> BaseInferenceSession:
        if self.failures:
            raise self.failures.pop()
        return self.session


@pytest.fixture
def scripted_session() -> type[ScriptedSession]:
    return ScriptedSession


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., str]:
    """Writes rows as JSONL and returns the file's path."""

    def write(*rows: Mapping[str, Any], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a person sees of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs the command line in `tmp_path`, where modules can be imported from too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(*arguments: str) -> Outcome:
        done = CliRunner().invoke(app, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Outcome(done.exit_code, done.stdout, done.stderr)

    return run


MOCK = "evalution_enginekit.mock:Mock"
ROW = {"question": "1 + 1?", "answer": "2", "choices": ["1", "2"], "right": 1}
TEST = '{type: generation, data: rows.jsonl, prompt: "Q: {question}", target: answer}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with thirty rows in `rows.jsonl`."""
    text = "".join(json.dumps(ROW) + "\n" for _ in range(30))
    (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def spec() -> Callable[..., str]:
    """Writes `spec.yaml` into a folder and returns its name."""

    def write(folder: Path, *, engine: str = MOCK, tests: str = f"[{TEST}]", rest: str = "") -> str:
        text = f'engine: "{engine}"\nmodel: {{path: m, label: my model}}\ntests: {tests}\n{rest}'
        (folder / "spec.yaml").write_text(text, encoding="utf-8")
        return "spec.yaml"

    return write


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., None]:
    """Puts the distribution NAME-plugin 2.1 into `tmp_path`: modules by name, and entry points."""

    def put(name: str, entry_points: str, **modules: str) -> None:
        for module, code in modules.items():
            (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{name}_plugin-2.1.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 2.1\n"
        (info / "METADATA").write_text(about, encoding="utf-8")
        (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")

    return put


@pytest.fixture
def end_when_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Ends every time limit of that many seconds once the child has opened the FIFO `reached`."""

    def patch(limit: float) -> None:
        class Impatient(subprocess.Popen[bytes]):
            def wait(self, timeout: float | None = None) -> int:
                if timeout is not None and timeout == limit:
                    os.close(os.open(tmp_path / "reached", os.O_RDONLY))
                    raise subprocess.TimeoutExpired(self.args, timeout)
                return super().wait(timeout)

        os.mkfifo(tmp_path / "reached")
        monkeypatch.setattr(subprocess, "Popen", Impatient)

    return patch


@pytest.fixture
def assert_says() -> Callable[[Any, int, str], None]:
    """Asserts that a command ended with this code and one line of error, without a traceback."""

    def check(done: Any, code: int, message: str) -> None:
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        told = [line for line in done.stderr.splitlines() if not line.startswith("hint: ")]
        assert told[-1].startswith("error: ")
        assert message in told[-1]

    return check


@pytest.fixture
def make_fidelity() -> Callable[..., fidelity.FidelityResult]:
    """A result with every part filled; `changes` are those of the candidate's divergence."""
    return make_fidelity_result


def make_fidelity_result(
    mean: float = 0.0124,
    floor: float | None = 0.0115,
    *,
    names: Sequence[str] = ("choices", "prose"),
    label: str = "tiny q8_0",
    size: int | None = 1_000_000,
    top: int | None = None,
    notes: Sequence[str] = (),
    text: str = " colour\n",
    **changes: Any,
) -> fidelity.FidelityResult:
    def make_suite(name: str) -> fidelity.SuiteFidelity:
        return fidelity.SuiteFidelity(
            name=name,
            kind="rolling" if name == "prose" else "loglikelihood",
            documents=40,
            candidate=make_arm(mean, text, top is not None, **changes),
            control=None if floor is None else make_arm(floor, text, top is not None),
            contrast=None if floor is None else spread(mean - floor),
        )

    engine = {"name": "LlamaCpp", "options": {"n_ctx": 512}, "execution": {"weights": "Q8_0"}}
    plain = {"name": "LlamaCpp", "options": {"n_ctx": 512}, "execution": {"weights": "F32"}}
    reference = {"name": "Reference", "options": {}, "execution": {"dtype": "float64"}}
    return fidelity.FidelityResult(
        reference=fidelity.Side({"path": "tiny", "label": "tiny"}, reference, 4_000_000),
        candidate=fidelity.Side({"path": f"{label}.gguf", "label": label}, engine, size),
        control=None if floor is None else fidelity.Side({"path": "tiny-f32.gguf"}, plain),
        vocabulary=512,
        window=256,
        top=top,
        limit=None,
        notes=list(notes),
        suites=[make_suite(name) for name in names],
        overall=make_suite("all"),
    )


def spread(value: float) -> fidelity.Estimate:
    return fidelity.Estimate(value, value - abs(value) / 4, value + abs(value) / 4)


def make_arm(mean: float, text: str, is_lower_bound: bool, **changes: Any) -> fidelity.Arm:
    figures: dict[str, Any] = {
        "kl": spread(mean),
        "median": mean / 10,
        "p95": mean * 4,
        "p99": mean * 9,
        "p999": mean * 20,
        "maximum": mean * 50,
        "top_share": 0.62,
        "reverse_kl": spread(mean * 1.1),
        "js": spread(mean / 4),
        "rms_dp": 0.0192,
        "same_top": fidelity.Estimate(0.973, 0.969, 0.977),
        "top5_overlap": 0.94,
        "log_ppl_ratio": fidelity.Estimate(0.0031, -0.0002, 0.0064),
        "entropy_reference": None if is_lower_bound else 2.31,
        "entropy": None if is_lower_bound else 2.33,
        "is_lower_bound": is_lower_bound,
        "covered": 0.9312 if is_lower_bound else 1.0,
    }
    edges = [0.0, *(10 ** (half / 2) for half in range(-14, 3)), math.inf]
    tops = [fidelity.TopToken(text, 0.91), fidelity.TopToken(" the", 0.03)]
    return fidelity.Arm(
        divergence=fidelity.Divergence(positions=5000, **(figures | changes)),
        histogram=[
            fidelity.Bin(low, high, round(900 * math.exp(-((at - 9) ** 2) / 9)), low)
            for at, (low, high) in enumerate(itertools.pairwise(edges))
        ],
        by_position=[
            fidelity.Bin(at, at + 32, 600, mean * 32 / (at + 8)) for at in range(0, 256, 32)
        ],
        by_entropy=[fidelity.Bin(at, at + 1, 700, mean * (at + 0.2)) for at in range(6)],
        flips=fidelity.ChoiceFlips(60, 4, 2, 1),
        greedy=fidelity.GreedyDivergence(20, 14, [3, 5, 9, 9, 12, 24]),
        worst=[
            fidelity.WorstToken(7, 31, mean * 50, "What is your favourite", text, tops, tops[::-1])
        ],
    )
