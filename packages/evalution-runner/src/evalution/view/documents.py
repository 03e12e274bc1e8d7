"""The JSON documents that pages show: a report embeds them, `evalution view` serves them.

Numbers that JSON can't hold (infinity, NaN) are null in them; durations are in seconds, moments in
ISO 8601, log-probabilities natural. A suite's main metric is the first of its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

RunStatus = Literal["loading", "running", "finished", "interrupted", "failed"]
"""A run whose process is gone before its end counts as interrupted."""
Which = Literal["all", "wrong", "right", "failed", "flipped"]
"""Choice of samples; `flipped` needs a run to compare with."""
Order = Literal["index", "-index", "value", "-value"]
"""Order of samples: by row or by the main metric, ascending or, with a minus, descending."""


class ScoreDocument(TypedDict):
    """A score of one metric of one suite; the first one of a suite is its main metric.

    `low` and `high` are the 95 % interval, `count` the samples behind the score, in `groups` of
    rows that belong together (None where rows are independent), `failed` those without an answer.
    Of a suite that isn't finished, score and interval are those of the samples so far, for metrics
    that are plain means of their samples, and `is_partial` is true. `is_share` is true of a share
    of right rows, which alone has a mean with those of other suites. `options` is the same for
    suites whose options are, but for those that change no score.
    """

    suite: str
    metric: str
    main: bool
    value: float | None
    low: float | None
    high: float | None
    count: int
    groups: int | None
    failed: int
    higher_is_better: bool
    is_partial: bool
    is_share: bool
    options: str


class ProgressDocument(TypedDict):
    """Progress of a run: samples of the whole run and of the suite at hand.

    None stands for what isn't known: a run without a progress file has no totals.
    """

    done: int
    total: int | None
    rate: float | None
    tokens_per_second: float | None
    eta_s: float | None
    suite: str | None
    suite_done: int
    suite_total: int | None
    suites_done: int
    suites: int | None
    failed: int


class RunDocument(TypedDict):
    """A run in the matrix. `problem` says why its results can't be read; all else is empty then."""

    id: str
    label: str
    model: str
    engine: str
    status: RunStatus
    started: str | None
    ended: str | None
    progress: ProgressDocument
    scores: Sequence[ScoreDocument]
    problem: str | None


class RunListDocument(TypedDict):
    """All runs, as `GET /api/runs` has them, newest first."""

    runs: Sequence[RunDocument]


class SuiteDocument(TypedDict):
    """A suite of a run; `metrics` are those that its samples have, the main one first.

    `judged_by` is the first metric by which each sample is right or wrong, None if there is none.
    """

    name: str
    type: str
    is_finished: bool
    metrics: Sequence[str]
    judged_by: str | None
    samples: int
    failed: int
    truncated: int | None
    requests: int
    cached: int
    seconds: float | None
    first_failure: str | None
    errors: Sequence[str]
    options: Mapping[str, Any]
    provenance: Mapping[str, Any]


class RunDetailDocument(TypedDict):
    """One run in full, as `GET /api/runs/{id}` has it."""

    run: RunDocument
    error: str | None
    notices: Sequence[str]
    model: Mapping[str, Any]
    engine: Mapping[str, Any]
    scoring_policy: Mapping[str, Any]
    versions: Mapping[str, Any]
    limit: int | None
    step: int | None
    timings: Mapping[str, float]
    suites: Sequence[SuiteDocument]


class SampleRowDocument(TypedDict):
    """A sample in a list: texts are cut, the prompt's at its front, because the question ends it.

    `value` is the main metric's, `right` the judgement by `SampleListDocument.judged_by`; None
    where there is none. `other` is the sample of the run that it is compared with.
    """

    index: int
    prompt: str
    target: str | None
    extracted: str | None
    value: float | None
    right: bool | None
    tokens: Mapping[str, int]
    error: str | None
    other: SampleOtherDocument | None


class SampleOtherDocument(TypedDict):
    """The same row in the run to compare with."""

    extracted: str | None
    value: float | None
    right: bool | None


class SampleListDocument(TypedDict):
    """A page of samples, as `GET /api/samples` has it.

    `total` counts the samples that were chosen; None after a search that ended once its page was
    full (`has_more` says whether there are others behind it). `every` counts all of the suite.
    """

    run: str
    suite: str
    against: str | None
    metric: str | None
    judged_by: str | None
    every: int
    total: int | None
    has_more: bool
    samples: Sequence[SampleRowDocument]


class TokenDocument(TypedDict):
    """A token with its log-probability; `text` is what it adds to the text before it.

    Both `id` and `text` are None where a server gives log-probabilities alone.
    """

    id: int | None
    text: str | None
    logprob: float | None


class ChoiceDocument(TypedDict):
    """One of the choices of a sample.

    `probability` is the softmax of the choices' log-probabilities. `chosen_by` names the metrics by
    whose rule it is the answer. `tokens` is None unless the run recorded them.
    """

    text: str | None
    logprob: float | None
    probability: float | None
    is_target: bool
    chosen_by: Sequence[str]
    tokens: Sequence[TokenDocument] | None


class MessageDocument(TypedDict):
    """A message of a chat; content that isn't text is shown as JSON."""

    role: str
    content: str


class SampleDocument(TypedDict):
    """A whole sample, as `GET /api/sample` has it: `prompt` or `messages` are what was fed.

    `extracted` is what was compared with the target, by metric or by filter; a choice suite's
    choices are in `choices` instead. `tokens` are those of the prediction, or of the scored text of
    a suite without choices, None unless the run recorded them. `group` is that of rows that belong
    together, None in a suite without groups. `previous` and `next` are the neighbours in the list
    that was asked for, None at its ends.
    """

    run: str
    suite: str
    index: int
    group: str | None
    prompt: str | None
    messages: Sequence[MessageDocument] | None
    target: str | None
    prediction: str | None
    extracted: Mapping[str, Any]
    choices: Sequence[ChoiceDocument]
    metrics: Mapping[str, float | None]
    right: bool | None
    counts: Mapping[str, int]
    tokens: Sequence[TokenDocument] | None
    error: str | None
    previous: int | None
    next: int | None


class DifferenceDocument(TypedDict):
    """A metric of a suite in a run against the baseline; `difference` is the run's minus that.

    `low` and `high` are its 95 % interval, `test` the test's name. `winner` is `run`, `baseline` or
    `tie`, and `contradicted` if the test's rows favour the other side; `gained` and `lost` count
    the rows that only the run, or only the baseline, has right.
    """

    run: str
    suite: str
    metric: str
    main: bool
    higher_is_better: bool
    baseline_value: float | None
    value: float | None
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    test: str | None
    winner: Literal["run", "baseline", "tie"] | None
    contradicted: bool
    paired: int
    gained: int | None
    lost: int | None


class ComparisonDocument(TypedDict):
    """Runs against a baseline, as `GET /api/compare` has it.

    `conditions` are the settings that differ from the baseline's, by run: `[name, baseline's,
    run's]`. `flipped` counts the flipped rows by run and suite, `remarks` are caveats by run.
    """

    baseline: str
    runs: Sequence[str]
    differences: Sequence[DifferenceDocument]
    conditions: Mapping[str, Sequence[Sequence[Any]]]
    flipped: Mapping[str, Mapping[str, int]]
    remarks: Mapping[str, Sequence[str]]


class LatestDocument(TypedDict):
    """The wrong and failed answers that came last in the suite at hand, as `GET /api/latest`.

    The latest is first; `suite` is None where no suite is running.
    """

    run: str
    suite: str | None
    samples: Sequence[SampleRowDocument]
