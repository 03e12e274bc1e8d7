"""The device that tinygrad runs on and its settings, set for one step at a time.

tinygrad keeps its settings for the whole process: its default device, its JIT's mode, and the
connection to its cache. Each step of a session sets its own and restores the former ones, so that
two sessions, or a program that uses tinygrad itself, don't disturb each other.
"""

# tinygrad leaves some of its functions without types, and doesn't mark what it exports.
# pyright: reportUnknownMemberType=false, reportPrivateImportUsage=false

from __future__ import annotations

import os
import platform
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tinygrad import Context, Device, Tensor, helpers
from tinygrad.codegen.opt import search
from tinygrad.device import ALL_DEVICES, LRUAllocator
from tinygrad.helpers import Target

from evalution_core import ConfigurationError, EngineRuntimeError, EngineUnavailableError
from evalution_enginekit import runtime_errors

_TURN = threading.RLock()
"""tinygrad has one state for all threads of a process: one of them at a time."""
_GRAPHS_FAIL = ("CUDA", "NV")
"""Devices whose graphs failed on consumer and data-centre GPUs, by the Engine Guide."""
_WITHOUT_COMPILER = "X86"


@dataclass(frozen=True, slots=True)
class Placement:
    """A device in tinygrad's own spelling (`CPU:X86`, `CUDA`), and its JIT's settings."""

    target: str
    jit: int
    beam: int

    @property
    def device(self) -> str:
        return Target.parse(self.target).device

    @contextmanager
    def activate(self) -> Generator[None]:
        """Use these settings while the context is entered; other threads wait."""
        settings = Context(DEV=self.target, JIT=self.jit, BEAM=self.beam)
        with _TURN, _use_own_cache(), _disable_alarms(), settings:
            yield

    def free_memory(self) -> None:
        """Free the memory that the device's allocator keeps for later."""
        opened: Any = Device[self.device]
        if isinstance(opened.allocator, LRUAllocator):
            opened.allocator.free_cache()


def open_device(device: str | None, jit: int | None, beam: int | None) -> Placement:
    """Open a device once, to see that it works, and return it with its settings.

    Args:
        device: as tinygrad's `DEV` (`cpu`, `cuda`, `metal`, `cpu:clangjit`); None or `auto` means
            the environment's `DEV`, else the first accelerator that opens, else the CPU.
        jit: tinygrad's `JIT`; None means 2 on CUDA, else tinygrad's own.
        beam: tinygrad's `JITBEAM`; None means 0 on CUDA, else tinygrad's own.

    Raises:
        ConfigurationError: no such device, or `beam` contradicts the environment.
        EngineUnavailableError: the device, or a compiler for it, isn't there.
    """
    with _TURN:
        target = _choose_target(device)
        name = Target.parse(target).device
        if jit is None:
            jit = 2 if name in _GRAPHS_FAIL else helpers.JIT.value
        placement = Placement(target, jit, _choose_beam(beam, name))
        _check_compiler(placement)
        with placement.activate(), Context(BEAM=0):
            try:
                with runtime_errors(f"opening {target}"):
                    _ = Device[name].renderer
                    # A compiler that is too old opens, and fails at its first vector of numbers.
                    Tensor([0.0] * 16).add(1).realize()
            except EngineRuntimeError as error:
                raise EngineUnavailableError(
                    f"device={device!r} can't be used by tinygrad: {error}; python -m "
                    "tinygrad.device lists what works here"
                ) from error
    return placement


def _choose_target(device: str | None) -> str:
    if device is None or device == "auto":
        asked = repr(helpers.DEV) if helpers.DEV.device else next(Device.get_available_devices())
        target = Target.parse(asked.split(";")[0])
    else:
        target = _parse_device(device)
    if target.device == "CPU" and not target.renderer and _is_x86():
        # tinygrad's other renderers call a compiler of the machine's, clang or LLVM.
        target = target.replacedefault(renderer=_WITHOUT_COMPILER)
    return repr(target)


def _parse_device(device: str) -> Target:
    names = ", ".join(name.lower() for name in ALL_DEVICES)
    try:
        target = Target.parse(device)
    except RuntimeError as error:
        raise ConfigurationError(f"device={device!r} is no device of tinygrad: {error}") from error
    if target.device not in ALL_DEVICES:
        raise ConfigurationError(
            f"device={device!r} is no device of tinygrad; say auto, or one of {names}"
        )
    if target.renderer.isdigit():
        raise ConfigurationError(
            f"device={device!r}: what follows the colon is a renderer for tinygrad, not a number; "
            "choose among several GPUs by CUDA_VISIBLE_DEVICES or its like"
        )
    return target


def _choose_beam(asked: int | None, device: str) -> int:
    own = os.environ.get("JITBEAM")
    if own is None:
        return asked if asked is not None else 0 if device in _GRAPHS_FAIL else helpers.BEAM.value
    if asked is not None and str(asked) != own:
        # It would win over every other setting.
        raise ConfigurationError(
            f"jitbeam={asked} and JITBEAM={own} in the environment contradict; unset one of them"
        )
    return int(own)


def _check_compiler(placement: Placement) -> None:
    if placement.device != "CPU" or Target.parse(placement.target).renderer not in ("", "CLANGJIT"):
        return
    compiler = os.environ.get("CC", "clang")
    if shutil.which(compiler) is None:
        raise EngineUnavailableError(
            f"tinygrad compiles for this CPU with {compiler}, which isn't on the PATH; install "
            "clang (Debian and Ubuntu: apt install clang; macOS: xcode-select --install)"
            + (", or use device='cpu:x86', which needs no compiler" if _is_x86() else "")
        )


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


@contextmanager
def _use_own_cache() -> Generator[None]:
    """Use the cache of compiled programs through a connection of this thread's own.

    tinygrad 0.13 keeps one SQLite connection for the process, and SQLite refuses it to all threads
    but the one that opened it.
    """
    module: Any = helpers
    found, module._db_connection = module._db_connection, None
    try:
        yield
    finally:
        if module._db_connection is not None:
            module._db_connection.close()
        module._db_connection = found


@contextmanager
def _disable_alarms() -> Generator[None]:
    """Search for fast kernels without time limits off the main thread.

    tinygrad 0.13 sets an alarm for each kernel that it tries (unless other processes compile
    them), and Python allows alarms on the main thread alone.
    """
    module: Any = search
    found = module.signal
    if threading.current_thread() is not threading.main_thread():
        module.signal = SimpleNamespace()
    try:
        yield
    finally:
        module.signal = found
