"""Threads, locks and time under the control of a test: one seed is one interleaving.

A simulated thread is a greenlet. Code that `load_instrumented` has loaded hands over before every
statement that the scheduler picks, and wherever it would block. A task that waits with a time limit
gets it from a clock that moves when nothing else can run, so a deadlock is found and not timed out.
"""

from __future__ import annotations

import ast
import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from math import inf
from queue import Empty
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from greenlet import GreenletExit, getcurrent, greenlet

MOST_POINTS = 200_000
SHORT_S = 1.0
"""A shorter wait may also end while others could run, as on a slow machine."""


class Violation(AssertionError):
    """An interleaving in which the code broke a promise."""


class Task(greenlet):
    """A simulated thread; `waits_for` says what it is blocked on."""

    def __init__(self, scheduler: Scheduler, run: Callable[[], None], name: str):
        super().__init__(self._run_guarded, scheduler.hub)
        self.scheduler, self.run_task, self.name = scheduler, run, name
        self.waits_for: str | None = None
        self.until = inf
        self.priority = scheduler.chance.random()
        self.failure: BaseException | None = None
        self.thread: object = self
        self.joining: list[Task] = []
        self.held = 0

    def _run_guarded(self) -> None:
        try:
            self.run_task()
        except GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the scheduler raises it
            self.failure = error
        for task in self.joining:
            self.scheduler.unblock(task)


class Scheduler:
    """Runs tasks one at a time, in an order that `seed` decides.

    Half of the seeds walk at random, handing over before a share of the statements. The others
    give each task a priority, and lower that of the running one at a few statements (the method of
    probabilistic concurrency testing), which reaches orders that need a long wait.
    """

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.hub = getcurrent()
        self.tasks: list[Task] = []
        self.now = 0.0
        self.points = 0
        self.trace: list[str] = []
        self.finalizers: list[Callable[[], None]] = []
        self.is_stopped = False
        self.is_random = self.chance.random() < 0.5
        self._share = self.chance.choice([0.003, 0.02, 0.1, 0.4])
        self._changes = self.chance.choice([200, 1000, 4000])
        self._left = 0
        self._plan_handover()

    @property
    def current(self) -> Task | None:
        task = getcurrent()
        return task if isinstance(task, Task) else None

    def spawn(self, run: Callable[[], None], name: str) -> Task:
        task = Task(self, run, name)
        self.tasks.append(task)
        return task

    def point(self) -> None:
        """A statement of instrumented code: hand over here if the seed says so."""
        self._left -= 1
        if self._left > 0 or (task := self.current) is None:
            return
        self._leave_stopped()
        self._plan_handover()
        if self.points > MOST_POINTS:
            raise Violation(f"no end after {MOST_POINTS} statements\n{self.describe()}")
        if not self.is_random:
            task.priority = -self.chance.random()
        if self.finalizers and self.chance.random() < (0.5 if task.held else 0.05):
            self.finalizers.pop()()
        self.hub.switch()

    def finalize(self, run: Callable[[], None]) -> None:
        """Have `run` called at a statement of any task, as a garbage collection would call it.

        Preferably where the task holds a lock: it is in the middle of a change then.
        """
        self.finalizers.append(run)
        self._left = min(self._left, 10)

    def block(self, waits_for: str, until: float = inf) -> None:
        """Suspend the current task until `unblock` or, at the latest, the time `until`."""
        task = self.current
        assert task is not None, f"the test itself would wait for {waits_for}"
        self._leave_stopped()
        task.waits_for, task.until = waits_for, until
        self.hub.switch()

    def _leave_stopped(self) -> None:
        if self.is_stopped:
            raise GreenletExit

    def unblock(self, task: Task) -> None:
        task.waits_for, task.until = None, inf

    def run(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Run tasks until none is left or `until` holds with nothing that can run.

        Raises:
            Violation: tasks wait for each other, or one raised.
        """
        while tasks := [task for task in self.tasks if not task.dead]:
            self.tasks = tasks
            ready = [task for task in tasks if task.waits_for is None]
            timed = min((t for t in tasks if t.until < inf), key=lambda t: t.until, default=None)
            is_early = timed is not None and timed.until - self.now < SHORT_S
            if timed is not None and (not ready or (is_early and self.chance.random() < 0.02)):
                if timed.until - self.now >= SHORT_S:
                    raise Violation(f"{timed.name} waited in vain\n{self.describe()}")
                self.now = max(self.now, timed.until)
                self.unblock(timed)
                ready = [timed]
            if not ready:
                if until():
                    return
                raise Violation(f"deadlock\n{self.describe()}")
            self._switch(self._choose(ready))

    def stop(self) -> None:
        """Throw away what still runs."""
        self.is_stopped, self._left = True, 0
        for task in self.tasks:
            if not task.dead:
                task.throw()

    def describe(self) -> str:
        lines = [*self.trace]
        for task in self.tasks:
            if not task.dead:
                lines.append(f"{task.name} waits for {task.waits_for or 'its turn'} at")
                lines += [f"    {place}" for place in _read_stack(task)]
        return "\n".join(lines)

    def _choose(self, ready: list[Task]) -> Task:
        if self.is_random:
            return self.chance.choice(ready)
        return max(ready, key=lambda task: task.priority)

    def _switch(self, task: Task) -> None:
        task.switch()
        if task.dead and task.failure is not None:
            raise Violation(
                f"{task.name} raised {task.failure!r}\n{self.describe()}"
            ) from task.failure

    def _plan_handover(self) -> None:
        share = self._share if self.is_random else 1 / self._changes
        share = max(share, 0.1) if self.finalizers else share
        drawn = self.chance.expovariate(share)
        self._left = 1 + int(drawn)
        self.points += self._left


def _read_stack(task: Task) -> Iterator[str]:
    frame = task.gr_frame
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back


class Lock:
    """`threading.Lock`, or with `reentrant` an `RLock`."""

    def __init__(self, scheduler: Scheduler, *, reentrant: bool):
        self.scheduler, self._reentrant = scheduler, reentrant
        self.owner: object = None
        self._depth = 0
        self._waiters: deque[Task] = deque()

    @property
    def is_mine(self) -> bool:
        return self.owner is getcurrent()

    def acquire(self) -> bool:
        self.scheduler.point()
        while self.owner is not None and not (self._reentrant and self.is_mine):
            if (task := self.scheduler.current) is not None:
                self._waiters.append(task)
            self.scheduler.block("a lock")
        self.owner = getcurrent()
        self._depth += 1
        self._count(1)
        return True

    def release(self) -> None:
        assert self.is_mine, "released by another"
        self._depth -= 1
        self._count(-1)
        if not self._depth:
            self._free()
        self.scheduler.point()

    def release_wholly(self) -> int:
        depth, self._depth = self._depth, 0
        self._count(-depth)
        self._free()
        return depth

    def restore(self, depth: int) -> None:
        self.acquire()
        self._depth = depth
        self._count(depth - 1)

    def _count(self, change: int) -> None:
        if (task := self.scheduler.current) is not None:
            task.held += change

    def _free(self) -> None:
        self.owner = None
        while self._waiters:
            self.scheduler.unblock(self._waiters.popleft())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, lock: Lock):
        self._lock = lock
        self._scheduler = lock.scheduler
        self._waiters: deque[Task] = deque()
        self.acquire, self.release = lock.acquire, lock.release

    def wait(self, timeout: float | None = None) -> bool:
        assert self._lock.is_mine, "waits without its lock"
        task = self._scheduler.current
        assert task is not None, "the test itself would wait"
        self._waiters.append(task)
        depth = self._lock.release_wholly()
        until = inf if timeout is None else self._scheduler.now + timeout
        try:
            self._scheduler.block("a condition", until)
        finally:
            is_notified = task not in self._waiters
            if not is_notified:
                self._waiters.remove(task)
            self._lock.restore(depth)
        return is_notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = inf if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()):
            rest = until - self._scheduler.now
            if rest <= 0:
                break
            self.wait(None if timeout is None else rest)
        return found

    def notify(self, n: int = 1) -> None:
        assert self._lock.is_mine, "notifies without its lock"
        for _ in range(min(n, len(self._waiters))):
            self._scheduler.unblock(self._waiters.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class SimpleQueue:
    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._waiters: deque[Task] = deque()

    def empty(self) -> bool:
        return not self._items

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiters:
            self._scheduler.unblock(self._waiters.popleft())

    def get(self, timeout: float | None = None) -> Any:
        until = inf if timeout is None else self._scheduler.now + timeout
        while not self._items:
            task = self._scheduler.current
            assert task is not None, "the test itself would wait"
            if self._scheduler.now >= until:
                raise Empty
            self._waiters.append(task)
            try:
                self._scheduler.block("a queue", until)
            finally:
                with suppress(ValueError):
                    self._waiters.remove(task)
        return self._items.popleft()


class Thread:
    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., None],
        args: Iterable[Any] = (),
        name: str = "thread",
        daemon: bool = False,
    ):
        self.name, self.daemon, self._scheduler = name, daemon, scheduler
        self._target, self._args = target, tuple(args)
        self._task: Task | None = None

    def start(self) -> None:
        target, arguments = self._target, self._args
        del self._target, self._args  # as in `threading`: what they hold lives as long as the run
        self._task = self._scheduler.spawn(lambda: target(*arguments), self.name)
        self._task.thread = self

    def join(self, timeout: float | None = None) -> None:
        task = self._scheduler.current
        assert task is not None, "the test itself would wait"
        if self._task is not None and not self._task.dead:
            self._task.joining.append(task)
            until = inf if timeout is None else self._scheduler.now + timeout
            self._scheduler.block(f"the end of {self.name}", until)


def make_threading(scheduler: Scheduler) -> SimpleNamespace:
    """Return what stands in for the module `threading`."""

    def current_thread() -> object:
        task = scheduler.current
        return None if task is None else task.thread

    def condition(lock: Lock | None = None) -> Condition:
        return Condition(lock or Lock(scheduler, reentrant=True))

    return SimpleNamespace(
        Lock=lambda: Lock(scheduler, reentrant=False),
        RLock=lambda: Lock(scheduler, reentrant=True),
        Condition=condition,
        Thread=lambda **named: Thread(scheduler, **named),
        current_thread=current_thread,
    )


def make_time(scheduler: Scheduler) -> SimpleNamespace:
    """Return what stands in for the module `time`."""
    return SimpleNamespace(monotonic=lambda: scheduler.now, perf_counter=lambda: scheduler.now)


class _Points(ast.NodeTransformer):
    """Calls `__point__` before every statement of every function."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        return _add_points(node)


def _add_points(node: Any) -> Any:
    for inner in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            statements: Any = getattr(inner, field, None)
            is_block = isinstance(statements, list) and not isinstance(inner, ast.ClassDef)
            if is_block and not any(_is_point(statement) for statement in statements):
                setattr(
                    inner, field, [new for old in statements for new in (_make_point(old), old)]
                )
    return node


def _make_point(before: ast.stmt) -> ast.stmt:
    point = ast.parse("__point__()").body[0]
    return ast.fix_missing_locations(ast.copy_location(point, before))


def _is_point(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement) == "__point__()"


class _Instrumenter(PathFinder):
    """Loads the named modules with points, and a changed source where `edits` has one."""

    def __init__(self, names: Iterable[str], edits: Mapping[str, tuple[str, str]]):
        self._names, self._edits = frozenset(names), edits

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        spec = PathFinder.find_spec(name, path) if name in self._names else None
        if spec is None or spec.origin is None:
            return None
        return spec_from_loader(name, cast(Any, _Loader(spec.origin, self._edits.get(name))))


class _Loader:
    def __init__(self, origin: str, edit: tuple[str, str] | None):
        self._origin, self._edit = origin, edit

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        with open(self._origin, encoding="utf-8") as file:
            source = file.read()
        if self._edit is not None:
            before, after = self._edit
            if source.count(before) != 1:
                raise ValueError(f"{self._origin} has {source.count(before)} times {before!r}")
            source = source.replace(before, after)
        vars(module)["__point__"] = lambda: None
        tree = _Points().visit(ast.parse(source))
        exec(compile(tree, self._origin, "exec"), vars(module))


@contextmanager
def _no_modules_of(package: str) -> Iterator[dict[str, ModuleType]]:
    def belongs(name: str) -> bool:
        return name == package or name.startswith(f"{package}.")

    kept = {name: module for name, module in sys.modules.items() if belongs(name)}
    for name in kept:
        del sys.modules[name]
    loaded: dict[str, ModuleType] = {}
    try:
        yield loaded
    finally:
        loaded |= {name: module for name, module in sys.modules.items() if belongs(name)}
        for name in loaded:
            del sys.modules[name]
        sys.modules |= kept


def load_instrumented(
    package: str, names: Iterable[str], edits: Mapping[str, tuple[str, str]] | None = None
) -> dict[str, ModuleType]:
    """Import a second copy of `package`; the modules `names` of it, with points, are returned.

    Args:
        edits: for a module, a part of its source and what takes its place.
    """
    full = [f"{package}.{name}" for name in names]
    edits = {f"{package}.{name}": edit for name, edit in (edits or {}).items()}
    finder = _Instrumenter(full, edits)
    with _no_modules_of(package):
        sys.meta_path.insert(0, finder)
        try:
            # At the end of the process its threads would still be simulated ones.
            with patch("atexit.register", lambda function: function):
                found = {name: import_module(f"{package}.{name}") for name in names}
        finally:
            sys.meta_path.remove(finder)
    found["concurrent.futures._base"] = _copy_futures()
    return found


def _copy_futures() -> ModuleType:
    """A copy of the standard library's futures, whose conditions can be simulated."""
    spec = PathFinder.find_spec(
        "concurrent.futures._base", import_module("concurrent.futures").__path__
    )
    assert spec is not None
    assert spec.loader is not None
    module = ModuleType(spec.name)
    exec(cast("Any", spec.loader).get_code(spec.name), vars(module))
    return module


@contextmanager
def bind(modules: Mapping[str, ModuleType], scheduler: Scheduler) -> Iterator[None]:
    """Give the modules the threads, locks, futures, time and points of `scheduler` meanwhile.

    No garbage is collected meanwhile: it would come at another statement each time.
    """
    threading, time = make_threading(scheduler), make_time(scheduler)
    futures = modules["concurrent.futures._base"]
    for module in modules.values():
        names = vars(module)
        names["__point__"] = scheduler.point
        names |= {"threading": threading} if "threading" in names else {}
        names |= {"time": time} if "time" in names else {}
        names |= {"SimpleQueue": partial(SimpleQueue, scheduler)} if "SimpleQueue" in names else {}
        names |= {"Future": futures.Future} if "Future" in names else {}
    gc.disable()
    try:
        yield
    finally:
        scheduler.stop()
        for module in modules.values():
            vars(module)["__point__"] = lambda: None
        gc.enable()
