"""Result of a noise measurement, as values and as the file `noise.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from evalution.fidelity.result import Nats, Side
from evalution.result_file import ResultFile

SCHEMA_VERSION = 1
FAMILY_ERROR = 1e-5
"""Chance of a false alarm in a whole measurement, over all conditions together."""

CONDITIONS: Mapping[str, str] = MappingProxyType(
    {
        "order": "order-variant",
        "cache": "cache-variant",
        "batch": "batch-variant",
        "concurrency": "batch-variant",
        "restart": "restart-variant",
    }
)
"""Conditions, and the verdict on an engine whose numbers it changes."""
DETERMINISTIC, RANDOM, UNDECIDED = "deterministic", "run-to-run noise", "undecided"
SEED_IGNORED, CLONED = "seed ignored", "samples cloned"


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between passes over the same requests, from all pairs of passes.

    `largest` and `rms` are of the log-probabilities of tokens, in nats; of a generation those
    before the texts part. `changed` is the mean share of requests whose answer differs in any way,
    `rows` how many rows differ between any two passes. `flips` and `texts` are the most questions
    with another answer, and the most greedy texts that differ, between two passes. `tokens` counts
    the log-probabilities that were compared; None in an older result.
    """

    pairs: int
    largest: Nats
    rms: Nats
    changed: float
    rows: int
    flips: int
    texts: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """Passes under a changed condition, against passes that lack this one change.

    `p_value` bounds from above, multiplied by the number of conditions, how often chance alone
    makes passes stand out as much; the condition counts if it is at most `FAMILY_ERROR`.
    `variance` is the mean square by which it moves a log-probability beyond repeats, in nats², and
    `share` its part of all variance; None where it doesn't count, or differences are infinite.
    """

    name: str
    differences: Differences
    p_value: float
    variance: float | None = None
    share: float | None = None

    @property
    def counts(self) -> bool:
        return self.p_value <= FAMILY_ERROR


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampled texts of `prompts` prompts.

    `same_seed` texts came again with the same seed, and `other_seed` came with another one too;
    `kept` of those that another one changes came again. None for an engine without seeds. Of
    `cloned` prompts all `samples`, asked at once without a seed, were the same. The chances are
    those by which independent samples of all prompts were the same as the first ones; None without
    log-probabilities.
    """

    prompts: int
    samples: int
    same_seed: int | None
    other_seed: int | None
    kept: int | None
    other_seed_chance: float | None
    cloned: int
    cloned_chance: float | None


@dataclass(frozen=True, slots=True)
class NoiseResult:
    """An engine held against itself.

    `repeats` are the differences between passes under one condition; `repeat_share` is their part
    of the variance, None where there is none. `verdicts` is never empty.
    """

    side: Side
    limit: int | None
    suites: list[str]
    rows: int
    requests: int
    questions: int
    completions: int
    repeats: Differences
    repeat_share: float | None
    conditions: list[Condition]
    sampling: Sampling | None
    verdicts: list[str]
    notes: list[str]
    timings: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


NOISE_FILE = ResultFile(
    name="noise.json",
    type=NoiseResult,
    what="a noise measurement",
    command="evalution noise SPEC --output DIR",
    newest_schema=SCHEMA_VERSION,
)
write_noise, read_noise = NOISE_FILE.write, NOISE_FILE.read
