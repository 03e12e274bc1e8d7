"""A session's life: build, describe, check, gc, close."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from evalution_conformance.assertions import (
    UNDECIDED,
    assert_refused,
    assert_same_score,
    assert_same_text,
)
from evalution_conformance.checks.checkpoint import blank_the_end, change_a_bit, copy_changed
from evalution_conformance.probes import CHATS, PAIRS, PROMPTS
from evalution_conformance.subject import Subject, open_stream, require_output
from evalution_conformance.suite import needs
from evalution_conformance.watch import call_at_once, call_within
from evalution_core import (
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EvalutionError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    SessionClosedError,
    UnsupportedRequestError,
)
from evalution_core.requests import DistributionRequest

_COMMON_KEYS = {
    "backend",
    "device",
    "dtype",
    "batching",
    "attention",
    "max_model_len",
    "fallback",
}
_CONFIGURATION_BYTES = 1 << 16
_UNREAD = "evalution_conformance_reads_nothing"
_THREADS, _ROUNDS = 2, 3
_SAMPLED = {Capability.SAMPLING, Capability.SEED}
_HOT = 2.0


class BuildChecks:
    """Checks that hold for any session, with or without a working model."""

    def test_build_gives_a_session(self, subject: Subject) -> None:
        """`build` returns a session whose capabilities are at most the engine's."""
        assert isinstance(subject.session, BaseInferenceSession), (
            f"build() must return a BaseInferenceSession, got {subject.session!r}"
        )
        more = subject.session.capabilities - subject.engine.capabilities
        assert not more, f"the session can do what the engine doesn't declare: {sorted(more)}"

    def test_an_engine_holds_no_weights(self, subject: Subject) -> None:
        """An engine is configuration: after `build` it pickles as before, and stays small."""
        assert subject.session is not None, "build() gives nothing"
        size = len(pickle.dumps(subject.engine))
        assert size <= _CONFIGURATION_BYTES, f"once built, the engine pickles to {size} bytes"

    def test_closing_twice_is_harmless(self, subject: Subject) -> None:
        """`close` is idempotent."""
        with subject.fresh() as session:
            session.close()
            session.close()

    def test_describe_execution_is_json_safe_and_stable(self, subject: Subject) -> None:
        """`describe_execution` gives JSON-safe values, the same each time."""
        _assert_json_safe_and_stable(subject.session.describe_execution, "describe_execution()")

    def test_identity_is_json_safe_and_stable(self, subject: Subject) -> None:
        """`identity` describes what answers, JSON-safe; None where that is unknowable.

        A small model with another weight has another one, or the cache would answer for it.
        """
        _assert_json_safe_and_stable(subject.session.identity, "identity()")
        if (identity := subject.session.identity()) is None:
            return
        with suppress(EvalutionError), copy_changed(subject.model, change_a_bit) as model:
            if model is not None:
                with subject.fresh(model=model) as session:
                    assert session.identity() != identity, (
                        f"for weights that differ, identity() is {identity} both times; hash the "
                        "files, as model_identity of evalution_enginekit does, or return None"
                    )


class LifecycleChecks:
    def test_with_closes_the_session(self, subject: Subject) -> None:
        """A session is a context manager that closes it."""
        with subject.fresh() as session:
            with session as entered:
                assert entered is session, "`with session as s` must give the session itself"
            name, call = next(iter(_list_calls(subject, session).items()))
            assert_refused(call, SessionClosedError, f"{name} after `with`")

    def test_the_files_of_the_model_answer(self, subject: Subject) -> None:
        """A small model with a part of its weights blank answers otherwise, or is refused."""
        known = _answer(subject, subject.session)
        with copy_changed(subject.model, blank_the_end) as model:
            if model is None:
                pytest.skip("the model isn't a file or folder of at most 16 MB")
            try:
                with subject.fresh(model=model) as session:
                    _assert_same_answer(subject, _answer(subject, session), known, "")
            except Exception:  # noqa: BLE001 - a runtime may notice the damage in any way
                return
        raise AssertionError(
            "with the last quarter of its weights blank, the model answers as before; load what is "
            "at the path that build() gets, and keep no weights by another key"
        )

    def test_every_call_after_close_is_refused(self, subject: Subject) -> None:
        """Any call after `close` is a `SessionClosedError`."""
        with subject.fresh() as session:
            session.close()
            for name, call in _list_calls(subject, session).items():
                assert_refused(call, SessionClosedError, f"{name} on a closed session")

    def test_gc_changes_no_answer(self, subject: Subject) -> None:
        """`gc` releases caches between suites; answers stay the same."""
        before = _answer(subject, subject.session)
        subject.session.gc()
        _assert_same_answer(subject, _answer(subject, subject.session), before, "after gc()")
        if subject.declares(Capability.GENERATE):
            requests = [subject.request(prompt) for prompt in PROMPTS]
            expected = subject.generate(*requests)
            with open_stream(subject, iter(enumerate(requests))) as stream:
                for key, result in stream:
                    subject.session.gc()
                    rule = "with gc() beside an open stream, greedy text is another"
                    output = require_output(result)
                    assert_same_text(subject, requests[key], output, expected[key], rule)

    def test_a_second_session_answers_alike(self, subject: Subject) -> None:
        """Two sessions live in one process, and closing one leaves the other alone."""
        before = _answer(subject, subject.session)
        with subject.fresh() as session:
            second = _answer(subject, session)
        _assert_same_answer(subject, second, before, "a second session")
        after = _answer(subject, subject.session)
        _assert_same_answer(subject, after, before, "after another session was closed")

    def test_template_variables_are_not_dropped(self, subject: Subject) -> None:
        """`chat_template_kwargs` that no template reads are refused, by `build` or with a chat."""
        model = dataclasses.replace(subject.model, chat_template_kwargs={_UNREAD: True})
        request = GenerationRequest(messages=CHATS[0], max_new_tokens=1)
        try:
            with subject.fresh(model=model) as session:
                session.generate([request])
        except (ConfigurationError, InvalidRequestError, UnsupportedRequestError):
            return
        raise AssertionError(
            f"no chat template reads {_UNREAD!r}, yet a model with it in chat_template_kwargs was "
            f"built and answered a chat; render with bound_tokenizer of evalution_enginekit, or "
            f"refuse the field with refuse_model_fields of evalution_enginekit.model_source"
        )

    def test_describe_execution_reports_the_common_keys_and_no_counters(
        self, subject: Subject
    ) -> None:
        """`describe_execution` has the common keys and doesn't change as requests are served."""
        session = subject.session
        session.check()
        before = session.describe_execution()
        assert before is not None, "describe_execution() returns nothing"
        missing = sorted(_COMMON_KEYS - before.keys())
        assert not missing, f"describe_execution() lacks {', '.join(missing)}"
        end = None if session.tokenizer is None else session.tokenizer.eos_id
        for name, known in ("max_model_len", session.info.max_model_len), ("eos_ids", end):
            found: Any = before.get(name)
            if None not in (known, found):
                is_so = known in found if name == "eos_ids" else known == found
                assert is_so, f"describe_execution() has {name} {found!r}, the session {known!r}"
        before = json.dumps(before, sort_keys=True)
        _answer(subject, session)
        after = json.dumps(session.describe_execution(), sort_keys=True)
        assert after == before, f"describe_execution() changed with use: {before} became {after}"

    def test_the_self_check_passes(self, subject: Subject) -> None:
        """`check` compares the scoring path with the next-token path; a failed one refuses."""
        subject.require_self_check()
        result = subject.session.check()
        assert subject.session.check() == result, "a second check() gives another result"

    def test_calls_from_other_threads_are_answered(self, subject: Subject) -> None:
        """A session may be called from any thread, and from several at once."""
        session = subject.session
        expected = [_answer(subject, session, at) for at in range(_THREADS)]
        rounds = call_at_once(
            [
                lambda at=at: [_answer(subject, session, at) for _ in range(_ROUNDS)]
                for at in range(_THREADS)
            ],
            timeout=subject.timeout / 2,
            doing="calls from two threads at once",
        )
        for found, known in zip(rounds, expected, strict=True):
            for answer in found:
                _assert_same_answer(subject, answer, known, "from one of two threads at once")

    @needs(Capability.GENERATE)
    def test_closing_ends_an_open_stream(self, subject: Subject) -> None:
        """A stream that is open when the session closes ends with `SessionClosedError`."""
        with subject.fresh() as session:
            requests = ((n, subject.request(PROMPTS[0])) for n in range(1_000_000))
            stream = session.generate_continuous(requests, batch_size=2)
            require_output(next(stream)[1])
            call_within(
                session.close, timeout=subject.call_timeout, doing="close() with an open stream"
            )
            assert_refused(
                lambda: call_within(
                    lambda: _read_on(stream),
                    timeout=subject.call_timeout,
                    doing="reading on after close()",
                ),
                SessionClosedError,
                "reading a stream whose session was closed",
            )


def _read_on(stream: Iterator[Any]) -> None:
    for _ in range(10_000):
        if next(stream, None) is None:
            return


def _assert_json_safe_and_stable(describe: Callable[[], Any], name: str) -> None:
    try:
        first = json.dumps(describe(), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{name} isn't JSON-safe: {error}") from error
    second = json.dumps(describe(), sort_keys=True)
    assert first == second, f"{name} differs from one call to the next: {first}, then {second}"


def _list_calls(subject: Subject, session: BaseInferenceSession) -> dict[str, Callable[[], Any]]:
    """List every call that the capabilities of the engine's sessions allow."""
    generation = subject.request(PROMPTS[0])
    pair = LoglikelihoodRequest(*PAIRS[0])
    text = RollingLoglikelihoodRequest(PROMPTS[0])
    rows = DistributionRequest([1, 2])
    calls: dict[Capability, dict[str, Callable[[], Any]]] = {
        Capability.GENERATE: {
            "generate": lambda: session.generate([generation]),
            "generate_continuous": lambda: next(session.generate_continuous([(0, generation)])),
        },
        Capability.STREAM: {"stream": lambda: next(session.stream([(0, generation)]))},
        Capability.LOGLIKELIHOOD: {
            "loglikelihood": lambda: session.loglikelihood([pair]),
            "loglikelihood_continuous": lambda: next(session.loglikelihood_continuous([(0, pair)])),
        },
        Capability.ROLLING: {
            "loglikelihood_rolling": lambda: session.loglikelihood_rolling([text]),
            "loglikelihood_rolling_continuous": lambda: next(
                session.loglikelihood_rolling_continuous([(0, text)])
            ),
        },
        Capability.DISTRIBUTIONS: {
            "distributions": lambda: next(iter(session.distributions([(0, rows)])))
        },
    }
    declared = subject.capabilities & calls.keys()
    found = {name: call for c in calls if c in declared for name, call in calls[c].items()}
    if type(session).check is not BaseInferenceSession.check:
        found["check"] = session.check
    return found | {"gc": session.gc}


def _answer(subject: Subject, session: BaseInferenceSession, at: int = 0) -> dict[str, Any]:
    """Return a completion and a score, and where rounding can't change it, a seeded sample."""
    answer: dict[str, Any] = {}
    if subject.declares(Capability.GENERATE):
        requests = [subject.request(PROMPTS[at])]
        if subject.capabilities >= _SAMPLED and subject.tolerance <= UNDECIDED:
            requests.append(
                dataclasses.replace(requests[0], do_sample=True, temperature=_HOT, seed=at)
            )
        answer["texts"] = session.generate(requests)
    if subject.declares(Capability.LOGLIKELIHOOD) and session.check().outcome != "failed":
        (answer["score"],) = session.loglikelihood([LoglikelihoodRequest(*PAIRS[at])])
    return answer


def _assert_same_answer(
    subject: Subject, found: dict[str, Any], expected: dict[str, Any], when: str
) -> None:
    if "texts" in expected:
        text, *samples = found["texts"]
        known, *known_samples = expected["texts"]
        rule = f"{when}, greedy text is another"
        assert_same_text(subject, subject.request(known.prompt), text, known, rule)
        for sample, other in zip(samples, known_samples, strict=True):
            assert sample.text == other.text, (
                f"{when}, the sample of a seed is {sample.text!r}, it was {other.text!r}"
            )
    if "score" in expected:
        assert_same_score(subject, found["score"], expected["score"], f"{when}, scores differ")
