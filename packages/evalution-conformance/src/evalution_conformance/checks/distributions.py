"""Distributions: rows of log-probabilities of the whole vocabulary."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

from evalution_conformance.assertions import UNDECIDED, assert_has_values, assert_same_score
from evalution_conformance.probes import (
    ENCODING,
    PAIRS,
    PROMPTS,
    TEXTS,
    change_tokens,
    make_long_ids,
)
from evalution_conformance.reference_values import open_reference
from evalution_conformance.rows import (
    ROUNDING,
    allow_rounding,
    assert_same_rows,
    measure_distance,
    read_blocks,
    read_rows,
)
from evalution_conformance.subject import LONGEST_PROBE, Subject, require_output
from evalution_conformance.suite import needs
from evalution_conformance.watch import call_within
from evalution_core import Capability, InvalidRequestError, LoglikelihoodRequest, RequestFailure
from evalution_core.requests import DistributionRequest

_SAME = 1e-6
"""A changed token moves the row that follows it by more nats."""
_LAST = 2
"""Rows of a long request that are read whole: a vocabulary may be large."""
_PROBE = 48


@needs(Capability.DISTRIBUTIONS)
class DistributionChecks:
    def test_rows_come_whole_and_in_order(self, subject: Subject) -> None:
        """Request by request and without a gap, float32 rows come that each sum to 1."""
        codec = subject.codec
        known = [i for text in (*ENCODING, *PROMPTS) for i in codec.encode(text)]
        largest = max(known + [i for i in (codec.bos_id, codec.eos_id) if i is not None])
        requests = [DistributionRequest(subject.prompt_ids(text)) for text in TEXTS]
        for index, rows in enumerate(read_rows(subject.session, requests)):
            for at, row in enumerate(rows):
                total = math.fsum(map(math.exp, row))
                assert abs(total - 1) <= ROUNDING, (
                    f"row {at} of request {index} sums to {total:.8g}: it isn't normalised, or not "
                    f"in float32"
                )
            assert largest < len(rows[0]), (
                f"the tokenizer has the id {largest}, and rows have {len(rows[0])} values"
            )

    @needs(Capability.LOGLIKELIHOOD)
    def test_rows_have_the_scores_of_their_tokens(self, subject: Subject) -> None:
        """Along a whole window, each token has in its row the value that it is scored with."""
        token_ids = make_long_ids(subject.codec, subject.probe_length + 1, seed=6)
        found: list[float] = []
        for _, block in read_blocks(subject.session, [DistributionRequest(token_ids)]):
            rows = cast(Any, block.rows)
            asked = token_ids[1 + block.first :][: len(rows)]
            found += [rows[at, token_id] for at, token_id in enumerate(asked)]
        scored = subject.score_ids(token_ids[:1], token_ids[1:])
        rule, tolerance = "tokens as scored and in their rows", allow_rounding(subject)
        assert_has_values(subject, scored, found, rule, tolerance=tolerance)

    @needs(Capability.GENERATE, Capability.LOGLIKELIHOOD)
    def test_the_most_likely_token_of_a_row_is_greedy(self, subject: Subject) -> None:
        """A greedy completion begins with it, and `is_greedy` is true of it."""
        prompts = [subject.prompt_ids(prompt) for prompt in PROMPTS]
        requests = [DistributionRequest([*ids, ids[-1]], len(ids)) for ids in prompts]
        for ids, (row,) in zip(prompts, read_rows(subject.session, requests), strict=True):
            second, best = sorted(range(len(row)), key=row.__getitem__)[-2:]
            if row[best] - row[second] <= max(UNDECIDED, 2 * subject.tolerance):
                continue
            request = subject.request("", input_ids=ids, max_new_tokens=1)
            first = subject.complete(request).token_ids or [best]  # empty where it is EOS
            assert first == [best], f"{best} leads its row, and greedy generation gave {first}"
            is_greedy = subject.score_ids(ids, [best]).is_greedy
            assert is_greedy in (None, True), f"{best} leads its row, and is_greedy is false"

    def test_rows_equal_the_reference(self, subject: Subject) -> None:
        """Same token ids in, same distributions out, up to the runtime's arithmetic."""
        requests = _make_requests(subject)
        found = read_rows(subject.session, requests)
        with open_reference(subject, Capability.DISTRIBUTIONS) as reference:
            window = reference.info.max_model_len or LONGEST_PROBE
            fitting = [at for at, r in enumerate(requests) if len(r.input_ids) <= window + 1]
            expected = read_rows(reference, [requests[at] for at in fitting])
        tolerance = max(subject.reference_tolerance, ROUNDING)
        for at, rows in zip(fitting, expected, strict=True):
            assert_same_rows(found[at], rows, f"request {at} against the reference", tolerance)

    def test_rows_do_not_depend_on_other_requests(self, subject: Subject) -> None:
        """Beside others, in another order and asked again, a request has the rows it has alone."""
        requests = _make_requests(subject)
        together = read_rows(subject.session, requests)
        backwards = read_rows(subject.session, requests[::-1])[::-1]
        for at, request in enumerate(requests):
            (alone,) = read_rows(subject.session, [request])
            for rows, order in (together[at], "others"), (backwards[at], "others, backwards,"):
                rule = f"request {at} among {order} and alone"
                assert_same_rows(rows, alone, rule, allow_rounding(subject))
        assert measure_distance(together[0][-1], together[1][-1]) > _SAME, (
            "after another last token come the rows of the ids that were asked for before"
        )

    def test_a_bad_request_for_rows_fails_alone(self, subject: Subject) -> None:
        """It is a `RequestFailure` in its place that says why; the others have their rows."""
        ids = subject.prompt_ids(TEXTS[0])
        good = DistributionRequest(ids, len(ids) - 1)
        (((row,)),) = read_rows(subject.session, [good])
        bad = {
            "no ids": DistributionRequest([]),
            "start 0": DistributionRequest(ids, 0),
            "a start behind the last id": DistributionRequest(ids, len(ids)),
            "an id that no row has": DistributionRequest([len(row), *ids]),
        }
        if (window := subject.session.info.max_model_len) is not None:
            too_long = [ids[at % len(ids)] for at in range(window + 2)]
            bad["an id too many for the window"] = DistributionRequest(too_long, window)
        pairs: list[tuple[str, DistributionRequest]] = []
        for fault, request in bad.items():
            pairs += (fault, replace(request, metadata={"is": fault})), (f"after {fault}", good)
        results = list(subject.session.distributions(pairs))
        expected, found = [key for key, _ in pairs], [key for key, _ in results]
        assert found == expected, f"results of {found} came, expected are {expected}"
        for key, result in results:
            if key not in bad:
                require_output(result)
                continue
            assert isinstance(result, RequestFailure), f"{key} is served: {result!s:.200}"
            assert isinstance(result.error, InvalidRequestError), f"{key} gives {result.error!r}"
            assert str(result.error), f"the error of {key} says nothing"
            assert result.metadata == {"is": key}, "the failure lacks the request's metadata"

    @needs(Capability.LOGLIKELIHOOD)
    def test_closing_rows_early_leaves_the_session_usable(self, subject: Subject) -> None:
        """Other calls are served beside rows that are being read, and after these were closed."""
        pair, wait = LoglikelihoodRequest(*PAIRS[0]), subject.call_timeout
        requests = _make_requests(subject)[:2]
        expected, (alone,) = read_rows(subject.session, requests), subject.score(pair)
        blocks = iter(subject.session.distributions(list(enumerate(requests))))
        require_output(next(blocks)[1])
        (beside,) = call_within(
            lambda: subject.score(pair), timeout=wait, doing="scoring beside rows being read"
        )
        call_within(cast(Any, blocks).close, timeout=wait, doing="closing rows early")
        assert_same_score(subject, beside, alone, "a pair beside rows being read and alone")
        for rows, known in zip(read_rows(subject.session, requests), expected, strict=True):
            assert_same_rows(rows, known, "rows after others were closed", allow_rounding(subject))


def _make_requests(subject: Subject) -> list[DistributionRequest]:
    """Make requests that begin or end alike, a short one, and one that fills the window."""
    length = subject.probe_length
    ids = make_long_ids(subject.codec, min(length, _PROBE), seed=7)
    after = subject.prompt_ids(PROMPTS[0])
    spans = [
        [*ids, ids[0]],
        *([*changed, ids[0]] for changed in change_tokens(ids)),
        after,
        make_long_ids(subject.codec, length + 1, seed=8),
    ]
    return [DistributionRequest(span, len(span) - _LAST) for span in spans]
