"""vLLM's engine core in a process of its own: that it lives, and that it ends."""

from __future__ import annotations

import threading
from importlib import import_module
from multiprocessing import connection
from typing import Any

from evalution_core import EngineRuntimeError

_LOOK_S = 0.5
_GRACE_S = 10.0


class CoreApart:
    """Watches a core's processes, and ends them.

    vLLM 0.32 and 0.33 wait for ever for the output of a core that was killed (by the kernel, where
    memory ran out, say): only a core that can still tell of its end is noticed. So the error is put
    where the output would come from.
    """

    def __init__(self, engine: Any):
        psutil: Any = import_module("psutil")
        self._engine = engine
        self._cores: list[Any] = list(engine.engine_core.resources.engine_manager.processes)
        found = [psutil.Process(core.pid) for core in self._cores]
        self._processes = [
            *found,
            *(child for core in found for child in core.children(recursive=True)),
        ]
        self._ending = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="vLLM's watcher", daemon=True)
        self._watcher.start()

    def end(self) -> None:
        """Shut the core down, and kill what doesn't end."""
        self._ending.set()
        self._watcher.join()
        self._engine.engine_core.shutdown(timeout=_GRACE_S)
        psutil: Any = import_module("psutil")
        # Upstream doesn't wait for those that it kills, nor look after its workers.
        _, left = psutil.wait_procs(self._processes, timeout=_GRACE_S)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=_GRACE_S)

    def _watch(self) -> None:
        sentinels = [core.sentinel for core in self._cores]
        while not connection.wait(sentinels, timeout=_LOOK_S):
            if self._ending.is_set():
                return
        outputs = self._engine.engine_core.outputs_queue
        codes = ", ".join(str(core.exitcode) for core in self._cores)
        while not self._ending.wait(_LOOK_S):
            # Generation and scoring may both wait, one after the other.
            if outputs.empty():
                outputs.put(EngineRuntimeError(f"vLLM's engine core ended, exit code {codes}"))
