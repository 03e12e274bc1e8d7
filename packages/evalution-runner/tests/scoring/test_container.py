"""Programs in containers, by a stand-in for docker that runs the same command without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from evalution.scoring import sandbox
from evalution.scoring.container import DEFAULT_IMAGE, Container, check_image
from evalution.scoring.sandbox import Limits, check_execution, run_program
from evalution_core import ConfigurationError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

STAND_IN = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
with Path(__file__).with_name("calls").open("a") as file:
    print(json.dumps(words), file=file)
if words[0] == "image" and words[2] == "absent":
    sys.exit("Error: No such image: absent")
if words[0] == "run":
    python = words.index("python")
    os.execv({sys.executable!r}, words[python:])
"""
LIMITS = Limits(time_s=20.0, memory_bytes=1 << 30)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the words of each call of a `docker` that is first on the PATH."""
    (tmp_path / "docker").write_text(STAND_IN)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check_image.cache_clear()
    return tmp_path / "calls"


def test_program_runs_in_a_container_without_network_rights_or_files_of_the_host() -> None:
    command = Container("podman", "python:3.12-slim", 1 << 30, "x").make_command()
    assert command[:2] == ["podman", "run"]
    image = command.index("python:3.12-slim")
    assert command[image + 1 : -1] == ["python", "-I", "-B", "-c"]
    options = {*command[2:image]}
    assert {"--rm", "--read-only", "--pull=never", "--network=none", "--name=x"} <= options
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=65534:65534"} <= options
    assert {f"--memory={1 << 30}", f"--memory-swap={1 << 30}", "--pids-limit=64"} <= options
    assert not [word for word in options if word.startswith(("--volume", "--mount", "--env-file"))]


def test_container_reports_as_a_locked_process_does(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_execution("docker") == ()
    assert run_program("assert 1 == 2, 'no'", LIMITS, "docker") == "AssertionError: no"
    leaving = "import os, signal\nos._exit(128 + signal.SIGALRM)"
    assert run_program(leaving, LIMITS, "docker") == "killed: takes longer than 20 s"
    monkeypatch.setattr(sandbox, "START_LIMIT_S", 0.2)
    endless = "import signal\nsignal.signal(signal.SIGALRM, print)\nwhile True: pass"
    verdict = run_program(endless, Limits(0.2, 1 << 30), "docker")
    assert verdict == "killed: takes longer than 0.2 s"
    *_, run, kill = [json.loads(line) for line in calls.read_text().splitlines()]
    assert f"--name={kill[1]}" in run
    assert kill[0] == "kill"


@pytest.mark.parametrize(
    ("runtime", "image", "message"),
    [
        ("podman", DEFAULT_IMAGE, "needs the program podman, which isn't on the PATH; install it"),
        ("docker", "absent", "No such image: absent; `docker pull absent` fetches it, or write"),
        ("docker", "--privileged", "must be the name of an image, got '--privileged'"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_container_that_is_not_there_is_refused(runtime: str, image: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_image(runtime, image)
