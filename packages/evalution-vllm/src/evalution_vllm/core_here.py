"""vLLM's engine core in this process: what it changes here, and how that ends."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar


class CoreHere:
    """One engine core of this process.

    Shutting one down takes the process groups of all down with it (vLLM 0.32 and 0.33). So those
    that end before the last one give back weights and cache, and are shut down with it.
    """

    _running: ClassVar[int] = 0
    _ended: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.engine: Any = None
        """vLLM's engine, once it has started."""
        CoreHere._running += 1

    @contextmanager
    def starting(self) -> Generator[None]:
        """A context for the start, which leaves random states and torch's functions alone."""
        torch: Any = import_module("torch")
        numpy: Any = import_module("numpy")
        # vLLM 0.32's CPU worker replaces it with a function that only warns.
        set_num_threads = torch.set_num_threads
        states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_num_threads = set_num_threads
            random.setstate(states[0])
            numpy.random.set_state(states[1])
            torch.set_rng_state(states[2])

    def end(self) -> None:
        """Free what the engine holds, and shut it down once no other one runs."""
        CoreHere._running -= 1
        engine, self.engine = self.engine, None
        if engine is not None:
            CoreHere._ended.append(engine)
        if CoreHere._running > 0:
            if engine is not None:
                engine.model_executor.shutdown()
            return
        ended, CoreHere._ended = CoreHere._ended, []
        for one in ended[:-1]:
            # It would shut down by itself when it is collected, and the groups are gone then.
            one.engine_core._finalizer.detach()
        for one in ended[-1:]:
            one.engine_core.shutdown()
