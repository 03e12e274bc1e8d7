"""Devices of tinygrad: choice, refusal, and the restored settings."""

# tinygrad doesn't mark what it exports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from importlib import metadata
from typing import Any

import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from tinygrad import Device, Tensor, helpers
from tinygrad.codegen.opt import search

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_tinygrad import Tinygrad
from evalution_tinygrad.device import Placement, open_device

_X86 = Placement("CPU:X86", 1, 0)


def _settings() -> tuple[Any, ...]:
    module: Any = helpers
    return repr(helpers.DEV), helpers.JIT.value, helpers.BEAM.value, module._db_connection


def test_an_x86_cpu_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", "")
    assert open_device("cpu", None, None).target == "CPU:X86"
    assert open_device("CPU", 2, 4) == Placement("CPU:X86", 2, 4)


def test_a_missing_clang_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(EngineUnavailableError, match=r"with clang, which isn't.*apt install clang"):
        open_device("cpu:clangjit", None, None)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(EngineUnavailableError, match="apt install clang") as refused:
        open_device("cpu", None, None)
    assert "x86" not in str(refused.value)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "'gpu' is no device of tinygrad; say auto, or one of metal, amd, nv, cuda"),
        ("cuda:1", "not a number; choose among several GPUs by CUDA_VISIBLE_DEVICES"),
        ("a:b:c:d", "too many ':' in target string"),
    ],
)
def test_a_wrong_device_is_refused(device: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_device(device, None, None)


def test_a_device_or_renderer_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(EngineUnavailableError, match="device='cpu:fast' can't be used by tinygrad"):
        open_device("cpu:fast", None, None)
    if "METAL" in list(Device.get_available_devices()):
        pytest.skip("this machine has Metal")
    with pytest.raises(EngineUnavailableError, match=r"device='metal' can't.*tinygrad.device"):
        open_device("metal", None, None)


def test_the_environments_device_and_beam_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with helpers.Context(DEV="PYTHON"):
        assert open_device(None, None, None).target == "PYTHON"
        assert open_device("auto", None, None).target == "PYTHON"
    monkeypatch.setenv("JITBEAM", "2")
    assert open_device("cpu", None, None).beam == 2
    assert open_device("cpu", None, 2).beam == 2
    with pytest.raises(ConfigurationError, match="jitbeam=0 and JITBEAM=2 in the environment"):
        open_device("cpu", None, 0)


def test_settings_are_restored_after_a_step() -> None:
    before, environment = _settings(), dict(os.environ)
    with _X86.activate():
        assert _settings()[0] == "CPU:X86"
        assert (Tensor([1, 2, 3]) * 2).tolist() == [2, 4, 6]
    assert _settings() == before
    with pytest.raises(ZeroDivisionError), _X86.activate():
        _ = 1 / 0
    assert _settings() == before
    assert dict(os.environ) == environment


def test_any_thread_may_compile() -> None:
    # A compiler's results are cached in SQLite, which refuses a connection of another thread.
    found: list[Any] = []

    def work(at: int) -> None:
        with _X86.activate():
            key = f"evalution-{os.getpid()}-{at}"
            helpers.diskcache_put("evalution_test", key, at)
            found.append(helpers.diskcache_get("evalution_test", key))

    for at in range(2):
        thread = threading.Thread(target=work, args=(at,))
        thread.start()
        thread.join()
    work(2)
    assert found == [0, 1, 2]


def test_any_thread_may_search_for_fast_kernels() -> None:
    # tinygrad limits each trial by an alarm, which Python refuses to all threads but the main one.
    found: list[Any] = []

    def work() -> None:
        with Placement("CPU:X86", 1, 1).activate(), helpers.Context(CACHELEVEL=0):
            found.append((Tensor([1.0] * 24) * 3).tolist())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[3.0] * 24]
    assert search.signal is signal


def test_a_compiler_that_fails_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(*_: Any) -> bytes:
        raise RuntimeError("expected '<4 x float>*'")

    monkeypatch.setattr("tinygrad.device.Compiler.compile_cached", compile_nothing)
    monkeypatch.setattr("tinygrad.codegen.to_program_cache", {})
    with pytest.raises(EngineUnavailableError, match=r"'cpu:x86' can't be used.*<4 x float>"):
        open_device("cpu:x86", None, None)


def test_the_broken_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalution_enginekit.runtime.version", lambda _: "0.14.0")
    expected = r"needs tinygrad>=0.13,<0.14, found tinygrad 0.14.0; pip install.*lacks tinygrad"
    with pytest.raises(EngineUnavailableError, match=expected):
        Tinygrad().build(Model("builtin:tiny"))


def test_missing_tinygrad_is_reported_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("evalution_enginekit.runtime.version", missing)
    with pytest.raises(EngineUnavailableError, match="tinygrad is not installed; pip install"):
        Tinygrad().describe_runtime()


def test_runtime_is_described_without_a_model() -> None:
    assert Tinygrad(device="cpu:x86", jit=2, jitbeam=0).describe_runtime() == {
        "version": f"tinygrad {metadata.version('tinygrad')}",
        "device": "CPU:X86",
        "jit": 2,
        "jitbeam": 0,
    }


def test_auto_leaves_the_environment_as_it_was() -> None:
    # In a process of its own: tinygrad looks for a device once, and then writes DEV.
    code = (
        "import os; before = dict(os.environ)\n"
        "from evalution_tinygrad import Tinygrad\n"
        "Tinygrad().describe_runtime()\n"
        "assert dict(os.environ) == before\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "DEV"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
