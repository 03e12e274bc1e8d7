"""A measurement of noise: passes over the same requests, each with one condition changed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from time import perf_counter
from typing import Any

from evalution.error_boundary import wrap_errors
from evalution.fidelity.result import Side
from evalution.noise.result import NoiseResult, Sampling
from evalution.noise.statistics import Pass, PassComparison, RowKey, find_verdicts, judge_conditions
from evalution.parity.agreement import Failed, Generated, Record
from evalution.parity.check import RequestEncoder, check_suites, collect, open_side, read_info
from evalution.progress import Progress
from evalution.runs.preflight import EngineAndModel
from evalution.runs.session import SessionHolder
from evalution.suites.choice_suite import ChoiceSample
from evalution.suites.suite import AnySuite, SuiteDeclaration
from evalution_core import (
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EvalutionError,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
)
from evalution_core.kinds import RequestKind
from evalution_core.requests import Request

Key = tuple[int, int, int]
"""The suite's number, the row's index, and which of its requests."""
Asked = Sequence[tuple[Key, Request]]
LIMIT = 20
"""Rows of each suite unless somebody asks for another number."""
REPEATS = 6
"""Passes without a change: 84 labellings of six and three passes, so that three rows are enough."""
CHANGES = 3
_LANES = 4
_PROMPTS = 16
_PROMPT_TOKENS = 64
_SAMPLES = 4
_SAMPLE_TOKENS = 16


def measure_noise(
    subject: EngineAndModel,
    tests: Sequence[SuiteDeclaration],
    *,
    limit: int | None = LIMIT,
    isolate: bool = False,
    progress: Progress | None = None,
) -> NoiseResult:
    """Ask one engine the same requests under changed conditions.

    A pass asks all requests of all suites, greedily and by ids where the engine takes them. Six
    passes ask one at a time and release the caches before each; six ask one at a time when all
    were asked just before. Three each change one condition of these: the order, all at once, four
    callers at once, a new session. Passes of different kinds take turns, so that what drifts
    drifts in all. Held in memory: the log-probability of every token of all 24 passes.

    Args:
        subject: the engine with its model.
        tests: the suites whose requests are put; their scores don't matter.
        limit: at most that many rows of each suite.
        isolate: run the engine in a process of its own.
        progress: receives the progress; None is silent.

    Raises:
        ConfigurationError: an option, a row or a model is wrong, or every request failed.
        UnsupportedRequestError: the engine can't do what a suite asks for.
        EvalutionError: the engine failed.
    """
    suites = {name: suite for name, suite, _ in check_suites(tests, limit, [subject])}
    started, before = datetime.now(UTC).isoformat(timespec="seconds"), perf_counter()
    measurement = _Measurement(subject, suites, limit, progress or Progress(), isolate=isolate)
    measurement.run()
    timings = {"started": started, "total_s": round(perf_counter() - before, 3)}
    return measurement.make_result(timings)


@dataclass(slots=True)
class _Caller:
    """Puts requests to one open session."""

    session: BaseInferenceSession
    suites: Sequence[AnySuite]

    def release(self) -> None:
        with wrap_errors("gc"):
            self.session.gc()

    def ask_together(self, asked: Asked) -> Pass:
        """Ask each suite's requests in one call."""
        found: dict[Key, Record] = {}
        for number, suite in enumerate(self.suites):
            # The key of `collect` is a pair, and the suite of a call is known.
            pairs = [(key[1:], request) for key, request in asked if key[0] == number]
            if pairs:
                answers = collect(self.session, suite, pairs, lambda key, record: None)
                found |= {(number, *key): record for key, record in answers.items()}
        return found

    def ask_alone(self, asked: Asked, *, is_cold: bool = False) -> Pass:
        """Ask one request after another; `is_cold` releases the caches before each."""
        found: dict[Key, Record] = {}
        for item in asked:
            if is_cold:
                self.release()
            found |= self.ask_together([item])
        return found

    def ask_cold(self, asked: Asked) -> Pass:
        """Ask alone, after the same request as any other pass in this order."""
        self.ask_alone(asked[-1:], is_cold=True)
        return self.ask_alone(asked, is_cold=True)

    def fill(self, asked: Asked) -> None:
        """Leave the caches as after a pass of single requests."""
        self.release()
        self.ask_alone(asked)

    def ask_concurrently(self, asked: Asked) -> Pass:
        """Ask alone from several threads, which share the requests."""
        with ThreadPoolExecutor(_LANES) as threads:
            shares = [asked[at::_LANES] for at in range(_LANES)]
            passes = list(threads.map(self.ask_alone, shares))
        return {key: record for each in passes for key, record in each.items()}


class _Measurement:
    def __init__(
        self,
        subject: EngineAndModel,
        suites: Mapping[str, AnySuite],
        limit: int | None,
        progress: Progress,
        *,
        isolate: bool,
    ):
        self._subject = subject
        self._suites = suites
        self._limit = limit
        self._progress = progress
        self._isolate = isolate
        self._record: dict[str, Any] = {}
        self._asked: Asked = ()
        self._questions: set[RowKey] = set()
        self._passes: dict[str, list[Pass]] = {}
        self._sampling: Sampling | None = None
        self._notes: list[str] = []
        self._done = count(1)

    def run(self) -> None:
        """Ask all passes of the first session, then one each of new sessions."""
        with ExitStack() as shown:
            with self._open(self._progress) as holder:
                self._progress.suite_started("passes", 2 * REPEATS + 4 * CHANGES)
                shown.callback(self._progress.suite_finished)
                caller = self._prepare(holder)
                self._asked = list(self._read_requests(caller.session))
                for number in range(REPEATS):
                    self._ask_round(caller, number)
                self._measure_samples(caller.session)
            for _ in range(CHANGES):
                with self._open(Progress()) as holder:  # the passes are shown meanwhile
                    caller = self._prepare(holder)
                    self._keep("restart", caller.ask_cold(self._asked))

    def _measure_samples(self, session: BaseInferenceSession) -> None:
        failed = self._find_failed()
        asked = [(key, request) for key, request in self._asked if key[:2] not in failed]
        try:
            self._sampling = _Sampler(session).measure(asked)
        except EvalutionError as error:
            self._notes.append(f"samples weren't measured: {error}")

    def make_result(self, timings: dict[str, Any]) -> NoiseResult:
        self._drop_failures()
        alone, warm = self._passes.pop("alone"), self._passes["cache"]
        bases = {"batch": warm, "concurrency": warm}
        comparisons = {
            name: PassComparison(bases.get(name, alone), passes[:CHANGES], self._questions)
            for name, passes in self._passes.items()
        }
        repeats, share, conditions = judge_conditions(comparisons)
        kept = alone[0]
        return NoiseResult(
            side=Side(self._subject.model.to_dict(), self._record),
            limit=self._limit,
            suites=list(self._suites),
            rows=len({key[:2] for key in kept}),
            requests=len(kept),
            questions=len(self._questions & {key[:2] for key in kept}),
            completions=sum(isinstance(record, Generated) for record in kept.values()),
            repeats=repeats,
            repeat_share=share,
            conditions=conditions,
            sampling=self._sampling,
            verdicts=find_verdicts(repeats, conditions, self._sampling),
            notes=self._notes,
            timings=timings,
        )

    def _open(self, progress: Progress) -> AbstractContextManager[SessionHolder]:
        self._record = {}
        return open_side(self._subject, progress, self._record, isolate=self._isolate)

    def _prepare(self, holder: SessionHolder) -> _Caller:
        for suite in self._suites.values():
            holder.prepare(suite)
        return _Caller(holder.session, list(self._suites.values()))

    def _read_requests(self, session: BaseInferenceSession) -> Iterator[tuple[Key, Request]]:
        """Yield all requests by ids, where the session takes them and has a tokenizer."""
        capabilities = read_info(session).capabilities
        with wrap_errors("tokenizer"):
            codec = session.tokenizer if Capability.TOKEN_IDS in capabilities else None
        encoder = None if codec is None else RequestEncoder(codec)
        for number, suite in enumerate(self._suites.values()):
            for sample in suite.samples(self._limit):
                if isinstance(sample, ChoiceSample):
                    self._questions.add((number, sample.index))
                for position, request in enumerate(sample.requests):
                    if isinstance(request, GenerationRequest):
                        logprobs = 0 if Capability.LOGPROBS in capabilities else None
                        request = replace(request, do_sample=False, seed=None, logprobs=logprobs)
                    encoded = None if encoder is None else encoder.encode(request)
                    yield (number, sample.index, position), encoded or request

    def _ask_round(self, caller: _Caller, number: int) -> None:
        self._keep("alone", caller.ask_cold(self._asked))
        if number < CHANGES:
            shuffled = list(self._asked)
            random.Random(number).shuffle(shuffled)
            self._keep("order", caller.ask_cold(shuffled))
        warm: dict[str, Callable[[Asked], Pass]] = {"cache": caller.ask_alone}
        if number < CHANGES:
            warm |= {"batch": caller.ask_together, "concurrency": caller.ask_concurrently}
        for name, ask in warm.items():
            caller.fill(self._asked)
            self._keep(name, ask(self._asked))

    def _keep(self, name: str, answers: Pass) -> None:
        in_order = {key: answers[key] for key, _ in self._asked}
        self._passes.setdefault(name, []).append(in_order)
        self._progress.sample_finished(next(self._done), 0, None)

    def _find_failed(self) -> dict[RowKey, str]:
        """Return the reason of each row that failed in any pass."""
        found: dict[RowKey, str] = {}
        for passes in self._passes.values():
            for each in passes:
                for key, record in each.items():
                    if isinstance(record, Failed):
                        found.setdefault(key[:2], record.reason)
        return found

    def _drop_failures(self) -> None:
        """Leave out rows that failed in any pass.

        Raises:
            ConfigurationError: none is left.
        """
        failed = self._find_failed()
        if not failed:
            return
        first = next(iter(failed.values()))
        for name, passes in self._passes.items():
            self._passes[name] = [
                {key: record for key, record in each.items() if key[:2] not in failed}
                for each in passes
            ]
        if not self._passes["alone"][0]:
            raise ConfigurationError(
                f"every row failed, so there is nothing to compare: {first}; run the spec by "
                "`evalution run` to see all failures"
            )
        self._notes.append(f"rows left out, as a request of them failed: {len(failed)}; {first}")


@dataclass(slots=True)
class _Sampler:
    """Sampled completions of a few prompts, with seeds and without."""

    session: BaseInferenceSession

    def measure(self, asked: Asked) -> Sampling | None:
        """Return what seeds do; None for a session that doesn't sample, or without prompts of ids.

        Texts with a seed are asked one at a time, those without all at once.
        """
        capabilities = read_info(self.session).capabilities
        prompts = _list_prompts(asked)
        if not {Capability.GENERATE, Capability.SAMPLING} <= capabilities or not prompts:
            return None
        logprobs = 0 if Capability.LOGPROBS in capabilities else None
        requests = [
            GenerationRequest(
                input_ids=ids,
                max_new_tokens=_SAMPLE_TOKENS,
                do_sample=True,
                temperature=1.0,
                logprobs=logprobs,
            )
            for ids in prompts
        ]
        clones = [self._sample([request] * _SAMPLES) for request in requests]
        cloned = sum(len({_read_ids(text) for text in texts}) == 1 for texts in clones)
        chance = _find_chance([texts[0] for texts in clones], _SAMPLES - 1)
        found = Sampling(len(prompts), _SAMPLES, None, None, None, None, cloned, chance)
        if Capability.SEED not in capabilities:
            return found
        # A seed of its own for each prompt: with one for all, their draws would not be independent.
        first, again, other = (
            [self._sample([replace(r, seed=seed + at)])[0] for at, r in enumerate(requests)]
            for seed in (0, 0, len(requests))
        )
        is_same = list(map(_has_same_ids, first, again))
        is_fixed = list(map(_has_same_ids, first, other))
        return replace(
            found,
            same_seed=sum(is_same),
            other_seed=sum(is_fixed),
            kept=sum(same > fixed for same, fixed in zip(is_same, is_fixed, strict=True)),
            other_seed_chance=_find_chance(first, 1),
        )

    def _sample(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        with wrap_errors("samples"):
            return RequestKind.GENERATION.answer(self.session, requests)


def _list_prompts(asked: Asked) -> list[list[int]]:
    """Return different prompts from all suites, cut to their last tokens; of a text, its first."""
    found: dict[tuple[int, ...], None] = {}
    for _, request in asked:
        match request:
            case GenerationRequest(input_ids=ids) | LoglikelihoodRequest(context_input_ids=ids):
                found[tuple(ids or ())[-_PROMPT_TOKENS:]] = None
            case RollingLoglikelihoodRequest(input_ids=ids):
                found[tuple(ids or ())[:_PROMPT_TOKENS]] = None
    prompts = [list(prompt) for prompt in found if prompt]
    return prompts[:: math.ceil(len(prompts) / _PROMPTS) or 1]


def _read_ids(text: GenerationOutput) -> tuple[int, ...] | str:
    return text.text if text.token_ids is None else tuple(text.token_ids)


def _has_same_ids(left: GenerationOutput, right: GenerationOutput) -> bool:
    return _read_ids(left) == _read_ids(right)


def _find_chance(texts: Sequence[GenerationOutput], others: int) -> float | None:
    """Return the chance that so many other samples of each prompt are the same as its text.

    A text's own probability is that of one other sample; without its end, it is an upper bound.
    """
    if any(text.token_logprobs is None for text in texts):
        return None
    return math.exp(others * math.fsum(math.fsum(text.token_logprobs or ()) for text in texts))
