"""`evalution bench` from the command line to its folder, and its refusals before any work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("guidellm", reason="guidellm isn't installed; see tools/envs")
pytestmark = pytest.mark.wide

Program = Callable[..., subprocess.CompletedProcess[str]]
TINY = ("builtin:tiny", "--engine", "Reference")
SMALL = ("--prompt-tokens", "16", "--output-tokens", "8")


def test_failed_requests_end_with_exit_code_3(program: Program, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "one"}\n' + json.dumps({"prompt": "word " * 3000}) + "\n")
    words = ("bench", *TINY, "--profile", "synchronous", "--data", str(rows), "--output", "b")
    done = program("evalution", *words, "--output-tokens", "4", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "one at a time: 1 failed, the first with ContextLengthError" in done.stderr
    (level,) = json.loads((tmp_path / "b" / "bench.json").read_text())["levels"]
    assert (level["successful"], level["errored"]) == (1, 1)


def test_server_is_measured_with_its_key(
    program: Program,
    served: str,
    key: str,
    tokenizer_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINY_KEY", key)
    words = ("bench", "--target", served, "--api-key-env", "TINY_KEY", *SMALL)
    more = ("--tokenizer", tokenizer_folder, "--requests", "10", "--chat", "--output", "b")
    done = program("evalution", *words, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tiny at {served};" in done.stdout
    (level,) = json.loads((tmp_path / "b" / "bench.json").read_text())["levels"]
    assert (level["successful"], level["errored"], level["output_tokens"]) == (10, 0, 80)
    written = "".join(file.read_text() for file in (tmp_path / "b").iterdir())
    assert key not in written + done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to measure"),
        (("m", "--engine", "Referenc"), "no engine 'Referenc' is installed"),
        ((*TINY, "-o", "dtype"), "--option 'dtype' is not KEY=VALUE"),
        ((*TINY, "-m", "revison=1"), "did you mean 'revision'"),
        ((*TINY, "-o", "dtyp=1"), "has no option 'dtyp'; did you mean 'dtype'"),
        (("/no/model", "--engine", "Reference"), "has none that Transformers can load"),
        ((*TINY, "--target", "http://127.0.0.1:9"), "give those of one"),
        (("m", "--target", "http://127.0.0.1:9", "--no-check-first"), "give those of one"),
        ((*TINY, "--rate", "2"), "--rate is for --profile rate"),
        ((*TINY, "--data", "no.jsonl"), "there is no such file"),
        ((*TINY, "--data", "empty.jsonl"), "empty.jsonl is empty"),
        ((*TINY, "--data", "broken.jsonl"), "broken.jsonl can't be read as json"),
        ((*TINY, "--data", "head.csv"), "head.csv has no rows"),
        ((*TINY, "--data", "other.jsonl"), "other.jsonl has no column of prompts (it has: x, y)"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text('{"prompt": ')
    (tmp_path / "head.csv").write_text("prompt\n")
    (tmp_path / "other.jsonl").write_text('{"x": "a", "y": "b"}\n')
    found = run_in_process(words, tmp_path, monkeypatch)
    assert found.exit_code == 2, found.output
    assert message in found.stderr
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_unreachable_server_ends_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_in_process(("m", "--target", "http://127.0.0.1:9"), tmp_path, monkeypatch)
    assert found.exit_code == 1, found.output
    assert "no server answers at http://127.0.0.1:9" in found.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "variable", "message"),
    [
        ("tiny", "WRONG_KEY", "refuses the key (401); --api-key-env names the variable"),
        ("tiny", "NO_SUCH_KEY", "that environment variable is not set"),
        ("tiny", "ODD_KEY", "the key in ODD_KEY has a line break or another character that an"),
        ("tyny", "TINY_KEY", "has no model 'tyny'; did you mean 'tiny'"),
    ],
)
def test_wrong_key_or_model_name_is_refused_before_any_work(
    name: str,
    variable: str,
    message: str,
    served: str,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINY_KEY", key)
    monkeypatch.setenv("WRONG_KEY", "another-key-of-the-test")
    monkeypatch.setenv("ODD_KEY", "another-key-of-the-test\nand-a-line")
    words = (name, "--target", served, "--api-key-env", variable)
    found = run_in_process(words, tmp_path, monkeypatch)
    assert found.exit_code == 2, found.output
    assert message in found.stderr
    assert "another-key" not in found.output


def test_ctrl_c_is_reported_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evalution_guidellm.bench.command.run_guidellm", interrupted)
    found = run_in_process((*TINY, "--output", "b"), tmp_path, monkeypatch)
    assert found.exit_code == 130, found.output
    assert found.stderr == "interrupted; nothing saved: a benchmark is written at its end\n"
    assert not (tmp_path / "b").exists()


def run_in_process(words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from typer.testing import CliRunner

    from evalution.cli.program import app

    monkeypatch.chdir(folder)
    return CliRunner().invoke(app, ["bench", *words])
