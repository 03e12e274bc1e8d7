"""The goals for the card, each beside the figure that was measured: met, missed or not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.gpu.card import compute_decoding_share, compute_flops_share, count_body_parameters
from tools.gpu.models import read_shape
from tools.gpu.stages import TRANSFORMERS_CLASSES

Attempts = dict[tuple[str, str], dict[str, Any]]
"""The last attempt at each step, by the names of its stage and its own."""


@dataclass(frozen=True)
class Goal:
    """A figure that is wanted: at least `least`, or at most `most`."""

    name: str
    read: Callable[[Attempts], float | None]
    least: float | None = None
    most: float | None = None
    unit: str = "x"

    def judge(self, attempts: Attempts) -> tuple[str, str]:
        """Return the figure and `met`, `missed` or `not run`."""
        found = self.read(attempts)
        if found is None:
            return "–", "not run"
        is_met = (self.least is None or found >= self.least) and (
            self.most is None or found <= self.most
        )
        return f"{found:.3g}{self.unit}", "met" if is_met else "missed"

    @property
    def bound(self) -> str:
        return (
            f"≥ {self.least:g}{self.unit}" if self.most is None else f"≤ {self.most:g}{self.unit}"
        )


def read_row(attempts: Attempts, stage: str, step: str, at: int = 0) -> dict[str, Any] | None:
    """Return one row of a bench's figures, None where it didn't pass."""
    attempt = attempts.get((stage, step))
    if attempt is None or attempt["outcome"] != "passed" or not attempt["result"]:
        return None
    return attempt["result"][at] if isinstance(attempt["result"], list) else attempt["result"]


def read_ratio(step: str) -> Callable[[Attempts], float | None]:
    def read(attempts: Attempts) -> float | None:
        row = read_row(attempts, "speed", step)
        return None if row is None else row["ratio"]

    return read


def read_generation(step: str) -> Callable[[Attempts], float | None]:
    """Our default way on the card against `generate_batch`: the faster of the two is offered."""

    def read(attempts: Attempts) -> float | None:
        attempt = attempts.get(("speed", step))
        if attempt is None or attempt["outcome"] != "passed":
            return None
        rows = [row for row in attempt["result"] if row["peer"].startswith("generate_batch")]
        return max((row["ratio"] for row in rows), default=None)

    return read


def read_flops_share(attempts: Attempts) -> float | None:
    """Share of the data sheet's peak by unique tokens a second, of the best scoring shape of 7b."""
    card = read_row(attempts, "prepare", "machine")
    if card is None or not card["peak_flops"]:
        return None
    return best_share(attempts, "7b", card["peak_flops"])


def best_share(attempts: Attempts, size: str, flops: float) -> float | None:
    parameters = count_body_parameters(read_shape(size))
    rows = [
        read_row(attempts, "speed", f"scoring {size} {name}")
        for name in ("mmlu", "arc", "hellaswag")
    ]
    shares = [
        compute_flops_share(row["unique"], parameters, row["seconds"], flops)
        for row in rows
        if row is not None
    ]
    return max(shares, default=None)


def read_memory_ratio(attempts: Attempts) -> float | None:
    row = read_row(attempts, "speed", "scoring 1b hellaswag", -1)
    return None if row is None or "ours_mib" not in row else row["ours_mib"] / row["lm_eval_mib"]


def count_red_conformance(attempts: Attempts) -> float | None:
    """Steps of conformance that failed, once all of the stage were tried."""
    tried = [attempts.get(("conformance", name)) for name in TRANSFORMERS_CLASSES.values()]
    found = [one for one in tried if one is not None]
    if len(found) < len(tried):
        return None
    return float(sum(one["outcome"] in ("failed", "timed out") for one in found))


def count_red_parity(attempts: Attempts) -> float | None:
    found = [
        one for (stage, name), one in attempts.items() if stage == "parity" and "oracle" in name
    ]
    return float(sum(one["outcome"] != "passed" for one in found)) if len(found) >= 3 else None


SIZES = ("1b", "7b")
LEAST_RATIOS = {"mmlu": 10.0, "arc": 10.0, "hellaswag": 2.0, "wikitext": 1.0}
GOALS = [
    *(
        Goal(f"scoring {size} {name} against lm-eval at its best batch", read_ratio(step), least)
        for size in SIZES
        for name, least in LEAST_RATIOS.items()
        for step in [f"scoring {size} {name}"]
    ),
    Goal("peak memory against lm-eval, hellaswag 1b", read_memory_ratio, most=1.0),
    *(
        Goal(f"generation 1b, {name}, against generate_batch", read_generation(step), 1.2)
        for name in ("even", "skewed")
        for step in [f"generation 1b {name}"]
    ),
    Goal("scoring 7b, share of the card's peak", read_flops_share, 0.5, unit=""),
    Goal("conformance of Transformers, red classes", count_red_conformance, most=0, unit=""),
    Goal("differences to the oracle outside their bound", count_red_parity, most=0, unit=""),
]


def index_attempts(records: Sequence[dict[str, Any]]) -> Attempts:
    return {(one["stage"], one["step"]): one for one in records}


def list_goals(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each goal, then one for each roofline figure that there is."""
    attempts = index_attempts(records)
    width = max(len(goal.name) for goal in GOALS)
    for goal in GOALS:
        figure, verdict = goal.judge(attempts)
        yield f"{goal.name:<{width}}  {goal.bound:>8}  {figure:>8}  {verdict}"
    yield from list_rooflines(attempts)


def list_rooflines(attempts: Attempts) -> Iterator[str]:
    """Yield the shares of the card's ceilings, by data sheet where known and as measured there."""
    card = read_row(attempts, "prepare", "machine")
    if card is None:
        return
    for size in (*SIZES, "tiny"):
        parameters = count_body_parameters(read_shape(size))
        share = best_share(attempts, size, card["measured_flops"])
        if share is not None:
            yield f"scoring {size}: {share:.1%} of the FLOP/s of a large matrix product there"
        for name in ("even", "skewed"):
            row = read_row(attempts, "speed", f"generation {size} {name}")
            if size != "tiny" and row is not None:
                share = compute_decoding_share(
                    row["tokens"],
                    row["rows"],
                    2 * parameters,
                    row["seconds"],
                    card["measured_bandwidth"],
                )
                yield f"generation {size} {name}: {share:.1%} of a large copy's bandwidth there"
