"""How a command ends: its exit code says what became of the run, however odd the engine is."""

from __future__ import annotations

import importlib
import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGINT, SIGTERM, raise_signal, signal
from typing import Any

import pytest
import typer

from evalution.cli.errors import hint_isolation, report_errors
from evalution.cli.run import finish_in_flight
from evalution.cli.signals import SignalReceived
from evalution_core import EngineRuntimeError

TEST = '{type: generation, data: rows.jsonl, prompt: "Q: {question}", target: answer}'


def test_a_terminal_without_arrows_shows_the_scores(spec: Any, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evalution", "run", spec(folder), "--output", "out", "--limit", "2"],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"exact_match" in done.stdout
    assert b"results: out" in done.stdout


@pytest.mark.parametrize(
    ("method", "code", "message"),
    [
        ("def build(self, model): raise SystemExit(0)", 1, "could not load my model: SystemExit"),
        ("def build(self, model): return None", 1, "must return a BaseInferenceSession, got None"),
        ("def __post_init__(self): raise KeyError('x')", 2, "engine Odd can't be made: KeyError"),
    ],
)
def test_an_odd_engine_is_one_line(
    assert_says: Any,
    spec: Any,
    command_line: Any,
    folder: Path,
    method: str,
    code: int,
    message: str,
) -> None:
    (folder / "odd.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_enginekit.mock import Mock\n"
        "@dataclass(slots=True)\n"
        f"class Odd(Mock):\n    {method}\n"
    )
    sys.modules.pop("odd", None)
    done = command_line("run", spec(folder, engine="odd:Odd"), "--allow-code")
    assert_says(done, code, message)


def test_an_error_of_closing_is_no_wrong_spec(
    assert_says: Any, spec: Any, command_line: Any, folder: Path
) -> None:
    (folder / "closing.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_core import ConfigurationError\n"
        "from evalution_enginekit.mock import Mock, MockSession\n"
        "class Session(MockSession):\n"
        "    def close(self):\n"
        "        raise ConfigurationError('odd close')\n"
        "@dataclass(slots=True)\n"
        "class Closing(Mock):\n"
        "    def build(self, model):\n"
        "        return Session('m', 512, 2)\n"
    )
    done = command_line(
        "run", spec(folder, engine="closing:Closing"), "--limit", "1", "--allow-code"
    )
    assert_says(done, 1, "odd close")


def test_a_second_ctrl_c_ends_in_130_too(spec: Any, command_line: Any, folder: Path) -> None:
    (folder / "twice.py").write_text(
        "import signal\n"
        "from dataclasses import dataclass\n"
        "from evalution_enginekit.mock import Mock, MockSession\n"
        "class Session(MockSession):\n"
        "    def generate_continuous(self, requests, *, batch_size=None):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "        return super().generate_continuous(requests, batch_size=batch_size)\n"
        "    def close(self):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "@dataclass(slots=True)\n"
        "class Twice(Mock):\n"
        "    def build(self, model):\n"
        "        return Session('m', 512, 2)\n"
    )
    done = command_line(
        "run", spec(folder, engine="twice:Twice"), "--allow-code", "--output", "out"
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    assert found["status"] == "interrupted"


def test_ctrl_c_while_the_command_line_is_imported_ends_in_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "evalution.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "evalution.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        importlib.import_module("evalution.__main__").main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted; what was finished is kept\n"


def test_a_run_that_dies_ends_in_1_and_keeps_its_samples(
    assert_says: Any, spec: Any, command_line: Any, folder: Path
) -> None:
    (folder / "dying.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_enginekit.mock import Mock, MockSession\n"
        "class Session(MockSession):\n"
        "    def _generate_tokens(self, feed):\n"
        "        for count, events in enumerate(super()._generate_tokens(feed)):\n"
        "            if count == 40:\n"
        "                raise RuntimeError('device lost')\n"
        "            yield events\n"
        "@dataclass(slots=True)\n"
        "class Dying(Mock):\n"
        "    def build(self, model):\n"
        "        return Session('m', 512, 2)\n"
        "@dataclass(slots=True)\n"
        "class Server(Dying):\n"
        "    is_out_of_process = True\n"
    )
    tests = "[" + TEST[:-1] + ", max_new_tokens: 4}]"
    path = spec(folder, engine="dying:Dying", tests=tests)
    done = command_line("run", path, "--output", "out", "--cache", "my answers", "--allow-code")
    assert_says(done, 1, "device lost")
    assert done.stderr.endswith(
        "in flight)\nhint: if it happens again, `isolate: true` at the top of the spec finds the "
        "request and records it as failed\n"
    )
    assert (
        f"to resume: evalution run {path} --output out --cache 'my answers' --allow-code\n"
        in done.stdout
    )
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    assert (found["status"], found["suites"]) == ("failed", [])
    assert (folder / "out" / "samples.jsonl").read_text(encoding="utf-8")
    server = command_line("run", spec(folder, engine="dying:Server", tests=tests), "--allow-code")
    assert_says(server, 1, "device lost")
    assert "isolate" not in server.stderr, "it isn't this process that would die"


@pytest.mark.parametrize("policy", ["max_failures: 0", "on_error: raise"])
def test_run_of_too_many_failures_goes_on_by_the_command_that_it_prints(
    spec: Any, command_line: Any, folder: Path, policy: str
) -> None:
    module = f"flaky_{policy[:3]}"
    (folder / f"{module}.py").write_text(
        "import os\n"
        "from dataclasses import dataclass\n"
        "from evalution_core import InvalidRequestError, RequestFailure\n"
        "from evalution_enginekit.mock import Mock, MockSession\n"
        "class Session(MockSession):\n"
        "    def generate_continuous(self, requests, *, batch_size=None):\n"
        "        failure = RequestFailure(InvalidRequestError('busy'))\n"
        "        for key, answer in super().generate_continuous(requests, batch_size=batch_size):\n"
        "            is_bad = key[0] == 3 and not os.path.exists('free')\n"
        "            yield key, failure if is_bad else answer\n"
        "@dataclass(slots=True)\n"
        "class Flaky(Mock):\n"
        "    def build(self, model):\n"
        "        return Session('m', 512, 2)\n"
    )
    path = spec(folder, engine=f"{module}:Flaky", rest=f"{policy}\n")
    done = command_line("run", path, "--output", "out", "--allow-code")
    assert done.returncode == 1
    assert "busy" in done.stderr
    again = f"evalution run {path} --output out --allow-code --retry-failed"
    assert f"to resume: {again}\n" in done.stdout
    (folder / "free").touch()
    assert command_line(*shlex.split(again)[1:]).returncode == 0


def test_model_that_cannot_score_is_refused_in_one_sentence_without_resuming(
    assert_says: Any, spec: Any, command_line: Any, folder: Path
) -> None:
    (folder / "texts.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_core import Capability, UnsupportedRequestError\n"
        "from evalution_core.errors import raise_failures\n"
        "from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock, MockSession\n"
        "class Session(MockSession):\n"
        "    capabilities = MOCK_CAPABILITIES - {Capability.ROLLING}\n"
        "    def loglikelihood_rolling(self, requests, **options):\n"
        "        raise_failures({0: UnsupportedRequestError('it gives texts alone')}, 1)\n"
        "@dataclass(slots=True)\n"
        "class Texts(Mock):\n"
        "    def build(self, model):\n"
        "        return Session('m', 512, 2)\n"
    )
    tests = "[{type: perplexity, data: rows.jsonl, text: question}]"
    path = spec(folder, engine="texts:Texts", tests=tests)
    done = command_line("run", path, "--output", "out", "--allow-code")
    assert_says(
        done,
        1,
        "suite 'rows' needs rolling; it gives texts alone; tests that generate run on it: "
        "`type: generation`, gsm8k",
    )
    assert "capability" not in done.stderr
    assert "to resume" not in done.stdout


@pytest.mark.parametrize(("is_possible", "lost"), [(False, [3]), (True, [])])
def test_isolation_is_no_hint_where_it_is_impossible_or_no_request_was_lost(
    is_possible: bool, lost: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    hinted = hint_isolation(is_possible=is_possible)
    with pytest.raises(typer.Exit), report_errors(debug=False), hinted:
        raise EngineRuntimeError("device lost", in_flight=lost)
    assert capsys.readouterr().err == "error: device lost\n"


@pytest.mark.parametrize(
    ("signal", "times", "word", "status"),
    [("SIGINT", 1, "Ctrl-C", 130), ("SIGINT", 2, "Ctrl-C", 130), ("SIGTERM", 1, "SIGTERM", 143)],
)
def test_ending_signal_keeps_what_was_finished_and_the_run_can_go_on(
    spec: Any,
    command_line: Any,
    capfd: pytest.CaptureFixture[str],
    folder: Path,
    times: int,
    signal: str,
    word: str,
    status: int,
) -> None:
    module = f"interrupted_{signal}_{times}"
    (folder / f"{module}.py").write_text(
        "import os, signal\n"
        "from dataclasses import dataclass\n"
        "from evalution_enginekit.mock import Mock, MockSession\n"
        "class Session(MockSession):\n"
        "    def generate_continuous(self, requests, *, batch_size=None):\n"
        "        answers = super().generate_continuous(requests, batch_size=batch_size)\n"
        "        for count, answer in enumerate(answers):\n"
        "            if count == 7 and not os.path.exists('done'):\n"
        "                open('done', 'w').close()\n"
        f"                for _ in range({times}):\n"
        f"                    signal.raise_signal(signal.{signal})\n"
        "            yield answer\n"
        "@dataclass(slots=True)\n"
        "class Interrupted(Mock):\n"
        "    def build(self, model):\n"
        "        return Session('m', 512, 2)\n"
    )
    name = spec(folder, engine=f"{module}:Interrupted")
    done = command_line("run", name, "--output", "out", "--limit", "30", "--allow-code")
    assert done.returncode == status
    notice = f"finishing what is in flight; {word} once more ends at once\n"
    assert capfd.readouterr().err == notice
    assert "interrupted; what was finished is kept" in done.stderr
    assert "to resume: " in done.stdout
    _, again = done.stdout.split("to resume: evalution ")
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    assert found["status"] == "interrupted"
    assert list(found["planned"].values()) == [30]
    text = (folder / "out" / "samples.jsonl").read_text(encoding="utf-8")
    finished = len(text.splitlines())
    assert finished == 7 if times == 2 else 8 <= finished < 30
    again = command_line(*shlex.split(again))
    assert again.returncode == 0
    assert f"{finished} of 30 were finished before" in again.stderr


class _Handle:
    """A run with something in flight, whose first `stop` does what it is given."""

    def __init__(self, during: Callable[[], None] = lambda: None):
        self.calls = 0
        self._during = during

    def stop(self) -> bool:
        self.calls += 1
        if self.calls == 1:
            self._during()
        return True


def test_notice_of_a_signal_needs_no_stream_that_may_be_locked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    handle: Any = _Handle()
    monkeypatch.setattr(sys, "stderr", None)  # a bar's proxy takes the locks of bar and console
    with finish_in_flight(handle):
        raise_signal(SIGINT)
    notice = "finishing what is in flight; Ctrl-C once more ends at once\n"
    assert capfd.readouterr().err == notice


def test_second_signal_within_the_handler_of_the_first_ends_at_once() -> None:
    handle: Any = _Handle(lambda: raise_signal(SIGTERM))
    with pytest.raises(SignalReceived, match="SIGINT"), finish_in_flight(handle):
        raise_signal(SIGINT)
    assert handle.calls == 1


def test_sigterm_while_the_model_is_loaded_ends_a_run_at_once(
    spec: Any, command_line: Any, folder: Path
) -> None:
    (folder / "ended.py").write_text(
        "import signal\n"
        "from dataclasses import dataclass\n"
        "from evalution_enginekit.mock import Mock\n"
        "@dataclass(slots=True)\n"
        "class Ended(Mock):\n"
        "    def build(self, model):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
    )
    done = command_line(
        "run", spec(folder, engine="ended:Ended"), "--allow-code", "--output", "out"
    )
    assert done.returncode == 143
    assert done.stderr.endswith("interrupted; what was finished is kept\n")
    assert not (folder / "out").exists()


def test_run_whose_terminal_is_closed_ends_with_its_results_written(
    spec: Any, folder: Path
) -> None:
    (folder / "waiting.py").write_text(
        "import os\n"
        "from dataclasses import dataclass\n"
        "from evalution_enginekit.mock import Mock, MockSession\n"
        "class Session(MockSession):\n"
        "    def generate_continuous(self, requests, *, batch_size=None):\n"
        "        for count, answer in enumerate(super().generate_continuous(requests)):\n"
        "            if count == 7:\n"
        "                print('seven answers', flush=True)\n"
        "                try:\n"
        "                    os.read(0, 1)\n"
        "                except OSError:\n"
        "                    pass\n"
        "            yield answer\n"
        "@dataclass(slots=True)\n"
        "class Waiting(Mock):\n"
        "    def build(self, model):\n"
        "        return Session('m', 512, 2)\n"
    )
    command = ["-m", "evalution", "run", spec(folder, engine="waiting:Waiting"), "--output", "out"]
    command.append("--allow-code")
    child, terminal = pty.fork()
    if not child:
        signal(SIGHUP, SIG_DFL)  # which is ignored under nohup
        os.chdir(folder)
        os.execv(sys.executable, [sys.executable, *command])
    shown = b""
    while b"seven answers" not in shown:
        shown += os.read(terminal, 1 << 16)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 129
    found = json.loads((folder / "out" / "results.json").read_text(encoding="utf-8"))
    assert found["status"] == "interrupted"
    assert len((folder / "out" / "samples.jsonl").read_text(encoding="utf-8").splitlines()) >= 8
