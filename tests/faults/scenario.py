"""One session, some threads that use it, and the promises that must hold in every order.

uv run python tests/faults/scenario.py 1234             replay a seed, with all that happened
uv run python tests/faults/scenario.py 1234 MUTANT      … with a bug of `planted_bugs.py` planted
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import numpy as np

from evalution_core import (
    Capability,
    CheckResult,
    EngineRuntimeError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodRequest,
    SessionClosedError,
    TextDelta,
)
from evalution_core.requests import DistributionRequest, DistributionRows
from evalution_enginekit import ByteTokenizer
from planted_bugs import MUTANTS
from simulation import Scheduler, Violation, bind, load_instrumented

MODULES = (
    "batching",
    "distributions",
    "generation",
    "planning",
    "runtime_thread",
    "scoring",
    "session",
    "streams",
)
WINDOW = 12
_TOKENIZER = ByteTokenizer()
_POISON = ord("!")

Modules = Mapping[str, ModuleType]


class InputError(Exception):
    """Raised by the input of a stream."""


class _Toy:
    """The methods of an engine whose answers depend on the request alone; a session class mixes in.

    With a scheduler it checks that the runtime is used as promised.
    """

    kit: Modules
    _thread: Any
    _batch_size: int

    def __init__(self, scheduler: Scheduler | None, chance: random.Random, faults: int):
        lacking = {Capability.BEAMS, Capability.MULTIMODAL, Capability.LOGPROBS}
        is_fixed = chance.random() < 0.3
        lacking |= {Capability.CONTINUOUS_BATCHING} if is_fixed else set()
        cast(Any, super()).__init__(
            engine="Toy",
            capabilities=frozenset(Capability) - lacking,
            tokenizer=_TOKENIZER,
            max_model_len=WINDOW,
            batch_size=chance.randint(1, 3),
            scoring_window=chance.randint(1, 4),
        )
        self.scheduler, self.chance = scheduler, chance
        self.faults, self.released, self.doing = faults, 0, ""
        self._step_faults = {chance.randint(1, 20) for _ in range(faults)}
        self._steps = 0

    @contextmanager
    def enter(self, doing: str) -> Iterator[None]:
        """Everything that touches the runtime: alone, on its thread, before its end."""
        if self.scheduler is not None:
            assert self._thread.is_current or doing == "release", f"{doing} on another thread"
            assert not self._thread.lock.is_mine, f"{doing} with the lock held"
            assert not self.doing, f"{doing} while the runtime does {self.doing}"
            assert not self.released, f"{doing} after the end"
        self.doing = doing
        self.think()
        try:
            yield
        finally:
            self.doing = ""

    def think(self) -> None:
        if self.scheduler is not None:
            self.scheduler.point()

    def fail_sometimes(self) -> None:
        self._steps += 1
        if self._steps in self._step_faults:
            raise ArithmeticError("planned")

    def _generate_tokens(self, feed: Any) -> Iterator[Any]:
        def begin(prompt: Any) -> _Sequence:
            return _Sequence(prompt, self.kit["generation"].TokenEvent)

        def step(sequences: list[_Sequence]) -> list[Any]:
            with self.enter("a step"):
                self.fail_sometimes()
                return [sequence.step() for sequence in sequences]

        return self.kit["batching"].run_continuous_batching(feed, self._batch_size, begin, step)

    def _score_tokens(self, spans: Sequence[Any]) -> Iterator[Any]:
        left, token_score = list(spans), self.kit["planning"].TokenScore
        while left:
            size = self.chance.randint(0, len(left))
            with self.enter("scoring"):
                self.fail_sometimes()
                scores = [token_score(_score(span)) for span in left[:size]]
            left = left[size:]
            yield scores

    def _compute_rows(self, spans: Sequence[Any]) -> Iterator[Any]:
        for span in spans:
            with self.enter("rows"):
                self.fail_sometimes()
                rows = np.array([[value] for value in _score(span)], np.float32)
            yield rows

    def _release_caches(self) -> None:
        with self.enter("gc"):
            self.think()

    def _release(self) -> None:
        with self.enter("release"):
            self.think()
        self.released += 1

    def _self_check(self) -> CheckResult:
        return CheckResult("passed", "")


def make_toy(modules: Modules) -> type[Any]:
    """Return the toy as a session class on this copy of the kit."""
    return type("Toy", (_Toy, modules["session"].TokenSession), {"kit": modules})


class _Sequence:
    def __init__(self, prompt: Any, token_event: Any):
        self._prompt, self._token_event = prompt, token_event
        self._count, self.is_done = 0, False

    def step(self) -> Any:
        prompt = self._prompt
        if _POISON in prompt.token_ids:
            self.is_done = True
            return self._token_event(prompt.key, error=EngineRuntimeError("poisoned"))
        self._count += 1
        self.is_done = self._count >= prompt.max_new_tokens
        token_id = 97 + (sum(prompt.token_ids) * 7 + self._count * 5) % 26
        return self._token_event(prompt.key, [token_id])


def _score(span: Any) -> list[float]:
    ids = span.token_ids
    if _POISON in ids:
        raise ArithmeticError("poisoned")
    return [
        -float(1 + (sum(ids[:at]) * 31 + ids[at] * 7) % 97) for at in range(span.start, len(ids))
    ]


_CALLS = {
    "generate": ("generate", "generate_continuous"),
    "stream": ("generate", "stream"),
    "pairs": ("loglikelihood", "loglikelihood_continuous"),
    "texts": ("loglikelihood_rolling", "loglikelihood_rolling_continuous"),
    "rows": (None, "distributions"),
}


def make_request(kind: str, number: int) -> Any:
    """Return the request `number` of that kind; multiples of 7 are poisoned."""
    text = f"{number}!" if number % 7 == 0 else f"{number}"
    if kind in ("generate", "stream"):
        stop = ["b", "k"] if number % 3 == 0 else []
        return GenerationRequest(text, max_new_tokens=1 + number % 5, stop=stop)
    if kind == "pairs":
        return LoglikelihoodRequest(text, "ab"[: 1 + number % 2])
    if kind == "texts":
        return RollingLoglikelihoodRequest(text * (1 + number % 11))
    return DistributionRequest([256, *text.encode(), 97])


@cache
def _reference() -> Any:
    modules = {name: import_module(f"evalution_enginekit.{name}") for name in MODULES}
    return make_toy(modules)(None, random.Random(0), 0)


@cache
def expected(kind: str, number: int) -> Any:
    """The right answer: by a call of its own, on the kit as it is."""
    call, request = getattr(_reference(), _CALLS[kind][1]), make_request(kind, number)
    answer: Any = None
    for _, event in call([(0, request)]):
        answer = _join(answer, event)
    return answer


def _join(before: Any, event: Any) -> Any:
    """What is known of an answer after an event: text, sum, or rows, or the type of its error."""
    if isinstance(event, RequestFailure):
        return type(event.error)
    if isinstance(event, TextDelta):
        return (before or "") + event.text
    if isinstance(event, DistributionRows):
        assert event.first == len(before or ()), "rows out of order"
        return (before or ()) + tuple(np.frombuffer(event.rows, np.float32))
    return event.text if isinstance(event, GenerationOutput) else event.logprob


class Scenario:
    """Threads with calls that a seed draws; `run` raises `Violation` if a promise is broken."""

    def __init__(self, seed: int, scheduler: Scheduler, toy: type[Any]):
        self.chance = random.Random(seed)
        self.scheduler = scheduler
        self.faults = self.chance.choice([0, 0, 1, 2])
        self.has_poison = self.chance.random() < 0.3
        self.session = toy(self.scheduler, self.chance, self.faults)
        self.closing = False

    def run(self) -> None:
        scheduler = self.scheduler
        try:
            users = [
                scheduler.spawn(self._make_user(name), name)
                for name in "ABC"[: self.chance.randint(1, 3)]
            ]
            scheduler.run(until=lambda: all(user.dead for user in users))
            self._check_quiet()
            scheduler.spawn(self._close, "closer")
            scheduler.run()
            assert self.session.released == 1, f"released {self.session.released} times"
        except Violation:
            raise
        except AssertionError as error:
            raise Violation(f"{error}\n{scheduler.describe()}") from error

    def note(self, text: str) -> None:
        task = self.scheduler.current
        self.scheduler.trace.append(f"{task.name if task else 'test'}: {text}")

    def _check_quiet(self) -> None:
        """Nothing runs or waits once every user is done, and no thread but the runtime's lives."""
        session, scheduler = self.session, self.scheduler
        while scheduler.finalizers:
            scheduler.spawn(scheduler.finalizers.pop(), "finalizer")
        scheduler.run(until=lambda: True)
        alive = {task.name for task in scheduler.tasks if not task.dead}
        assert alive <= {"the Toy session runtime"}, f"threads left: {alive}"
        assert not session.requests_in_flight, f"{session.requests_in_flight} slots taken"
        assert not session._scoring._chunks, "chunks left"

    def _close(self) -> None:
        self.closing = True
        self.note("close")
        self.session.close()
        assert self.session.released == 1, "close returned before the runtime was released"
        try:
            self.session.generate([make_request("generate", 1)])
        except SessionClosedError:
            return
        raise AssertionError("a closed session answered")

    def _make_user(self, name: str) -> Callable[[], None]:
        chance, kinds = self.chance, list(_CALLS)
        acts: list[Callable[[], None]] = []
        for index in range(chance.randint(1, 3)):
            act = chance.choices(["read", "list", "gc", "close"], [5, 2, 2, 2])[0]
            kind = chance.choice(kinds[: 4 if act == "list" else 5])
            numbers = [self._draw_number() for _ in range(chance.randint(1, 4))]
            if act == "read":
                acts.append(StreamUser(self, f"{name}{index}", kind, numbers).read)
            elif act == "list":
                acts.append(partial(self._call, kind, numbers))
            else:
                acts.append(self._close if act == "close" else self._collect)

        def use() -> None:
            for act in acts:
                act()

        return use

    def _draw_number(self) -> int:
        number = self.chance.randint(1, 20)
        return number if self.has_poison or number % 7 else number + 1

    def _collect(self) -> None:
        self.note("gc")
        with self.errors():
            self.session.gc()

    def _call(self, kind: str, numbers: list[int]) -> None:
        self.note(f"{kind} {numbers}")
        requests = [make_request(kind, number) for number in numbers]
        with self.errors(is_poisoned=any(number % 7 == 0 for number in numbers)):
            outputs = getattr(self.session, _CALLS[kind][0])(requests)
            found = [_join(None, output) for output in outputs]
            assert found == [expected(kind, number) for number in numbers], f"{kind}: {found}"

    @contextmanager
    def errors(self, *, is_poisoned: bool = False) -> Iterator[None]:
        """Let the typed errors pass that something in this scenario accounts for."""
        try:
            yield
        except SessionClosedError:
            assert self.closing, "a session that nobody closed was closed"
        except EngineRuntimeError as error:
            if not (self.faults or is_poisoned or self.has_poison):
                raise Violation(f"no cause for {error!r}") from error
        self.note("done")


class StreamUser:
    """Reads a stream to its end or a part of it, cancels, closes or drops it."""

    def __init__(self, scenario: Scenario, name: str, kind: str, numbers: list[int]):
        chance = scenario.chance
        self.scenario, self.name, self.kind = scenario, name, kind
        self.requests = {f"{name}.{index}": number for index, number in enumerate(numbers)}
        self.breaks_at = chance.choice([None, None, chance.randint(0, len(numbers))])
        self.has_junk = chance.random() < 0.1
        self.leaves_after = chance.choice([None, None, chance.randint(0, 3)])
        self.leaves_by = chance.choice(["close", "drop", "finalizer", "finalizer"])
        if self.leaves_by == "finalizer":
            self.leaves_after = chance.choice([None, 1, 1, 2])
        can_cancel = kind != "rows" and chance.random() < 0.5
        self.cancels = chance.choice(list(self.requests)) if can_cancel else None
        self.cancels_after = chance.choice([None, 0, 1, 2])
        self.given: list[str] = []
        self.answers: dict[str, Any] = {}
        self.over: set[str] = set()
        self.cancelled: set[str] = set()
        self.gone: set[str] = set()
        """Cancelled by the reader while they ran: nothing more may come of them."""

    def read(self) -> None:
        scenario = self.scenario
        scenario.note(f"{self.kind} {self.requests}, breaks {self.breaks_at}")
        is_poisoned = any(number % 7 == 0 for number in self.requests.values())
        with scenario.errors(is_poisoned=is_poisoned):
            stream = getattr(scenario.session, _CALLS[self.kind][1])(self._give())
            holder = [stream]
            del stream
            canceller = self._start_canceller(holder)
            try:
                if self._read_some(holder):
                    self._check_complete()
            except InputError:
                assert self.breaks_at is not None, "an error that the input never raised"
                self._check_complete()
            except EngineRuntimeError as error:
                doubled = set(error.in_flight) & self.over
                assert not doubled, f"lost and answered: {doubled}"
                raise
            finally:
                self._leave(holder)
                if canceller is not None:
                    canceller.clear()

    def _give(self) -> Iterator[Any]:
        for index, (key, number) in enumerate(self.requests.items()):
            if index == self.breaks_at:
                raise InputError
            if index == 0 and self.has_junk:
                yield 5
            self.given.append(key)
            self.scenario.scheduler.point()
            yield key, make_request(self.kind, number)
        if len(self.requests) == self.breaks_at:
            raise InputError

    def _read_some(self, holder: list[Any]) -> bool:
        """Read what is wanted; False if results are left."""
        lock = self.scenario.session._thread.lock
        junk = int(self.has_junk)
        for count in range(1000):
            if count == self.leaves_after:
                return False
            if count == self.cancels_after:
                self._cancel(holder[0])
            try:
                key, event = next(holder[0])
            except StopIteration:
                assert self.breaks_at is None, "the error of the input is lost"
                assert not junk, "the malformed item has no answer"
                return True
            assert not lock.is_mine, "a result comes with the lock held"
            if key is None:
                junk -= 1
                assert isinstance(event.error, InvalidRequestError), event
                continue
            self._take(key, event)
        raise AssertionError("a stream without end")

    def _take(self, key: str, event: Any) -> None:
        assert key in self.given, f"{key} was never asked"
        assert key not in self.over, f"{key} was answered twice"
        assert key not in self.gone, f"{key} was cancelled while it ran"
        answer = self.answers[key] = _join(self.answers.get(key), event)
        self.scenario.note(f"{key} has {answer!r}")
        right = expected(self.kind, self.requests[key])
        if isinstance(event, TextDelta):
            assert isinstance(right, str), f"{key}: {answer!r} in place of {right!r}"
            assert right.startswith(answer), f"{key}: {answer!r} in place of {right!r}"
        elif isinstance(event, DistributionRows) and answer != right:
            assert right[: len(answer)] == answer, f"{key}: {answer!r} in place of {right!r}"
        else:
            self.over.add(key)
            is_lost = answer is EngineRuntimeError and bool(self.scenario.faults)
            is_closed = answer is SessionClosedError and self.scenario.closing
            assert is_lost or is_closed or answer == right, f"{key}: {answer!r}, not {right!r}"

    def _check_complete(self) -> None:
        missing = set(self.given) - self.over - self.cancelled
        assert not missing, f"{missing} have no answer"

    def _cancel(self, stream: Any) -> None:
        key = self.cancels
        if key is None:
            return
        self.scenario.note(f"cancel {key}")
        has_begun = key in self.answers and key not in self.over
        self.cancelled.add(key)
        stream.cancel(key)
        if key not in self.given:
            self.cancelled.discard(key)  # to be served when it comes
        if has_begun and self.cancels_after is not None:
            self.gone.add(key)

    def _start_canceller(self, holder: list[Any]) -> list[Any] | None:
        """Have another thread cancel the key, where this one doesn't."""
        if self.cancels is None or self.cancels_after is not None:
            return None
        streams = list(holder)

        def cancel() -> None:
            while streams:
                self._cancel(streams.pop())

        self.scenario.scheduler.spawn(cancel, f"canceller of {self.name}")
        return streams

    def _leave(self, holder: list[Any]) -> None:
        self.scenario.note(f"leaves by {self.leaves_by}")
        if self.leaves_by == "finalizer":
            self.scenario.scheduler.finalize(holder.clear)
        elif self.leaves_by == "close":
            stream = holder.pop()
            stream.close()
            stream.close()
            assert next(stream, None) is None, "a closed stream has results"
        else:
            holder.clear()


@cache
def load(mutant: str | None = None) -> tuple[Modules, type[Any]]:
    """Return the instrumented kit, with a bug if one is named, and the toy engine on it."""
    edits = {} if mutant is None else {MUTANTS[mutant][0]: MUTANTS[mutant][1:]}
    modules = load_instrumented("evalution_enginekit", MODULES, edits)
    return modules, make_toy(modules)


def run_schedule(seed: int, mutant: str | None = None) -> Scheduler:
    """Run one seed.

    Raises:
        Violation: a promise was broken; the message has the way there and the way to replay it.
    """
    modules, toy = load(mutant)
    scheduler = Scheduler(seed)
    try:
        with bind(modules, scheduler):
            Scenario(seed, scheduler, toy).run()
    except Violation as violation:
        names = f"{seed} {mutant}" if mutant else f"{seed}"
        raise Violation(
            f"{violation}\nreplay: uv run python tests/faults/scenario.py {names}"
        ) from violation.__cause__
    return scheduler


if __name__ == "__main__":
    replayed = run_schedule(int(sys.argv[1]), *sys.argv[2:3])
    print(*replayed.trace, f"{replayed.points} statements", sep="\n")
