"""Whole texts: each token once, in windows that fit."""

from __future__ import annotations

import copy
import math

import pytest

from evalution_conformance.assertions import (
    assert_failure,
    assert_has_values,
    assert_refused,
    assert_same_fields,
    assert_same_score,
)
from evalution_conformance.probes import SENTENCE, TEXTS
from evalution_conformance.reference_values import (
    SMALL_WINDOW,
    RollingCase,
    load_reference_values,
    require_cases,
)
from evalution_conformance.subject import Subject, collect_outputs, resize
from evalution_conformance.suite import fills_the_window, needs
from evalution_core import (
    Capability,
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
from evalution_core.encoding import rolling_windows


@needs(Capability.ROLLING)
class RollingChecks:
    @fills_the_window
    def test_each_token_is_scored_once(self, subject: Subject) -> None:
        """Each token of the text is scored exactly once, BOS never."""
        for text in (*TEXTS, _long_text(subject)):
            (output,) = subject.roll(RollingLoglikelihoodRequest(text))
            token_ids = subject.codec.encode(text)
            assert output.token_count == len(token_ids), (
                f"the text has {len(token_ids)} tokens, {output.token_count} were scored"
            )
            assert output.token_ids in (None, token_ids), "the scored tokens aren't the text's"
            values = output.token_logprobs
            assert values is None or len(values) == len(token_ids), "token_logprobs are too few"
            assert values is None or output.logprob == math.fsum(values), (
                "logprob isn't the sum of token_logprobs"
            )

    @needs(Capability.LOGLIKELIHOOD)
    def test_one_window_is_plain_scoring(self, subject: Subject) -> None:
        """A text that fits scores as the continuation of an empty context."""
        for text in TEXTS:
            (rolled,) = subject.roll(RollingLoglikelihoodRequest(text))
            (scored,) = subject.score(LoglikelihoodRequest("", text))
            assert_same_score(subject, rolled, scored, "a text in one window")

    @needs(Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    @fills_the_window
    def test_windows_sum_to_the_text(self, subject: Subject) -> None:
        """Longer texts are scored in windows of at most `max_model_len` tokens fed."""
        prefix = subject.conditioning_id
        text = _long_text(subject)
        expected: list[float] = []
        for window in rolling_windows(subject.codec.encode(text), prefix, subject.window):
            context_ids = window.token_ids[: window.start]
            part = subject.score_ids(context_ids, window.token_ids[window.start :])
            expected += part.token_logprobs or [part.logprob]
        (rolled,) = subject.roll(RollingLoglikelihoodRequest(text))
        assert_has_values(subject, rolled, expected, "a text in windows and its windows alone")

    def test_bos_is_never_scored(self, subject: Subject) -> None:
        """A text that spells its BOS is conditioned on it, and not scored for it."""
        spelled = subject.codec.decode([subject.bos_id], skip_special_tokens=False)
        if subject.codec.encode(spelled) != [subject.bos_id]:
            pytest.skip("the tokenizer doesn't read BOS from text")
        given, plain = subject.roll(
            RollingLoglikelihoodRequest(spelled + TEXTS[0]), RollingLoglikelihoodRequest(TEXTS[0])
        )
        assert_same_score(subject, given, plain, "a text with and without BOS spelled before it")

    @needs(Capability.TOKEN_IDS)
    @fills_the_window
    def test_rolled_ids_are_their_text(self, subject: Subject) -> None:
        """`input_ids` are scored as the text that they are, in windows too."""
        texts = (TEXTS[0], _long_text(subject))
        requests = [RollingLoglikelihoodRequest(text) for text in texts]
        requests += [
            RollingLoglikelihoodRequest(input_ids=subject.codec.encode(text)) for text in texts
        ]
        short, long, *given = subject.roll(*requests)
        for ids, text in zip(given, (short, long), strict=True):
            assert_same_score(subject, ids, text, "a text and its ids")

    def test_an_empty_text_is_refused(self, subject: Subject) -> None:
        """An empty rolling text is an `InvalidRequestError` that names it."""
        good = RollingLoglikelihoodRequest(TEXTS[0])
        requests = [good, RollingLoglikelihoodRequest(""), good]
        error = assert_refused(
            lambda: subject.roll(*requests), InvalidRequestError, "an empty text"
        )
        assert set(error.failures) == {1}, (
            f"request 1 is empty, failures name {sorted(error.failures)}"
        )

    @fills_the_window
    def test_texts_score_in_order(self, subject: Subject) -> None:
        """One output for each text, in order, as alone; requests stay as they were."""
        texts = [*TEXTS, _long_text(subject), *reversed(TEXTS)]
        requests = [RollingLoglikelihoodRequest(t, metadata={"t": t[:9]}) for t in texts]
        before = copy.deepcopy(requests)
        outputs = subject.roll(*requests)
        assert len(outputs) == len(requests), f"{len(requests)} texts, {len(outputs)} scores"
        assert requests == before, "loglikelihood_rolling() changed the caller's request"
        for request, output in zip(requests, outputs, strict=True):
            assert output.metadata == request.metadata, f"metadata came as {output.metadata}"
            (alone,) = subject.roll(request)
            assert_same_score(subject, output, alone, "a text among others and alone")
        assert subject.roll() == [], "an empty list must give an empty list"

    @fills_the_window
    def test_a_stream_of_texts_scores_as_the_list_does(self, subject: Subject) -> None:
        """`loglikelihood_rolling_continuous` yields each key once, with the list call's scores."""
        texts = [*TEXTS, _long_text(subject)]
        requests = [
            RollingLoglikelihoodRequest(text, metadata={"row": n}) for n, text in enumerate(texts)
        ]
        asked = [*enumerate(requests)]
        asked.insert(1, (-1, RollingLoglikelihoodRequest("", metadata={"row": -1})))
        stream = subject.session.loglikelihood_rolling_continuous(asked, batch_size=2)
        pairs = list(stream)
        results = dict(pairs)
        assert len(results) == len(pairs), "a key came twice"
        assert_failure(results.pop(-1, None), {"row": -1}, "an empty text")
        outputs = collect_outputs(iter(results.items()))
        assert outputs.keys() == {*range(len(texts))}, f"the keys {outputs.keys()} came back"
        for key, expected in enumerate(subject.roll(*requests)):
            assert_same_score(subject, outputs[key], expected, f"text {key} in a stream")
            assert_same_fields(subject, outputs[key], expected, f"text {key} in a stream")

    def test_rolling_equals_the_reference(self, subject: Subject) -> None:
        """Same text and window in, same log-probabilities out."""
        window = subject.window
        compared = 0
        for case in load_reference_values(subject).rolling:
            ids, shortest = case.token_ids, min(window, case.max_model_len or window)
            fits = ids is not None and len(ids) <= shortest
            if fits or case.max_model_len == window:
                (output,) = subject.roll(RollingLoglikelihoodRequest(case.text))
                _assert_equals_reference(subject, case, output)
                compared += 1
        assert compared, f"no reference text fits max_model_len={window}"

    def test_windows_equal_the_reference(self, subject: Subject) -> None:
        """Windows as lm-eval's: a text longer than `max_model_len` scores as it does there."""
        known = load_reference_values(subject).rolling
        cases = require_cases((c for c in known if c.max_model_len == SMALL_WINDOW), "windows")
        engine = resize(subject.engine, SMALL_WINDOW)
        if engine is None:
            pytest.skip("the engine has no option max_model_len")
        with subject.fresh(engine=engine) as session:
            for case in cases:
                (output,) = session.loglikelihood_rolling([RollingLoglikelihoodRequest(case.text)])
                _assert_equals_reference(subject, case, output)


def _long_text(subject: Subject) -> str:
    """A text of at least two windows and a bit."""
    tokens = len(subject.codec.encode(SENTENCE * 2)) // 2
    return (SENTENCE * (1 + math.ceil(2.2 * subject.window / tokens))).rstrip()


def _assert_equals_reference(
    subject: Subject, case: RollingCase, output: RollingLoglikelihoodOutput
) -> None:
    rule = f"the text {case.text[:40]!r} in windows of {case.max_model_len} against the reference"
    allowed = subject.reference_tolerance
    assert_has_values(subject, output, case.token_logprobs, rule, tolerance=allowed)
