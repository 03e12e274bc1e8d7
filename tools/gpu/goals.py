"""The goals for the card, each beside the figure that was measured: met, missed or not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.gpu.card import compute_decoding_share, compute_flops_share, count_body_parameters
from tools.gpu.models import read_shape
from tools.gpu.stages import TRANSFORMERS_CLASSES
from tools.gpu.steps import Attempts, merge_attempts


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


def read_card(attempts: Attempts) -> dict[str, Any] | None:
    return attempts.get(("prepare", "machine"), {}).get("result")


def read_rows(attempts: Attempts, step: str, shape: str) -> list[dict[str, Any]]:
    """Return the rows of a shape that a bench has measured, whatever came of the rest."""
    rows = attempts.get(("speed", step), {}).get("result") or []
    return [row for row in rows if row["shape"] == shape]


def read_ratio(size: str, shape: str) -> Callable[[Attempts], float | None]:
    def read(attempts: Attempts) -> float | None:
        rows = read_rows(attempts, f"scoring {size}", shape)
        return rows[0]["ratio"] if rows else None

    return read


def read_generation(shape: str) -> Callable[[Attempts], float | None]:
    """Our default way on the card against `generate_batch`: the faster of the two is offered."""

    def read(attempts: Attempts) -> float | None:
        rows = read_rows(attempts, f"generation 1b {shape}", shape)
        ratios = [row["ratio"] for row in rows if row["peer"].startswith("generate_batch")]
        return max(ratios, default=None)

    return read


def read_flops_share(attempts: Attempts) -> float | None:
    """Share of the data sheet's peak by unique tokens a second, of the best scoring shape of 7b."""
    card = read_card(attempts)
    if card is None or not card["peak_flops"]:
        return None
    return best_share(attempts, "7b", card["peak_flops"])


def best_share(attempts: Attempts, size: str, flops: float) -> float | None:
    parameters = count_body_parameters(read_shape(size))
    rows = [
        row
        for shape in ("mmlu", "arc", "hellaswag")
        for row in read_rows(attempts, f"scoring {size}", shape)
    ]
    shares = [compute_flops_share(row["unique"], parameters, row["seconds"], flops) for row in rows]
    return max(shares, default=None)


def read_memory_ratio(attempts: Attempts) -> float | None:
    """Return our peak on whole texts as a multiple of lm-eval's."""
    rows = read_rows(attempts, "scoring 1b", "wikitext")
    return rows[0]["ours_mib"] / rows[0]["lm_eval_mib"] if rows else None


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
        Goal(
            f"scoring {size} {name} against lm-eval at its best batch",
            read_ratio(size, name),
            least,
        )
        for size in SIZES
        for name, least in LEAST_RATIOS.items()
    ),
    Goal("peak memory against lm-eval, wikitext 1b", read_memory_ratio, most=1.0),
    *(
        Goal(f"generation 1b, {name}, against generate_batch", read_generation(name), 1.2)
        for name in ("even", "skewed")
    ),
    Goal("scoring 7b, share of the card's peak", read_flops_share, 0.5, unit=""),
    Goal("conformance of Transformers, red classes", count_red_conformance, most=0, unit=""),
    Goal("differences to the oracle outside their bound", count_red_parity, most=0, unit=""),
]


def list_goals(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each goal, then one for each roofline figure that there is."""
    attempts = merge_attempts(records)
    width = max(len(goal.name) for goal in GOALS)
    for goal in GOALS:
        figure, verdict = goal.judge(attempts)
        yield f"{goal.name:<{width}}  {goal.bound:>8}  {figure:>8}  {verdict}"
    yield from list_rooflines(attempts)


def list_rooflines(attempts: Attempts) -> Iterator[str]:
    """Yield the shares of the card's ceilings, by data sheet where known and as measured there."""
    card = read_card(attempts)
    if card is None:
        return
    for size in SIZES:
        parameters = count_body_parameters(read_shape(size))
        share = best_share(attempts, size, card["measured_flops"])
        if share is not None:
            yield f"scoring {size}: {share:.1%} of the FLOP/s of a large matrix product there"
        for name in ("even", "skewed"):
            for row in read_rows(attempts, f"generation {size} {name}", name)[:1]:
                share = compute_decoding_share(
                    row["tokens"],
                    row["rows"],
                    2 * parameters,
                    row["seconds"],
                    card["measured_bandwidth"],
                )
                yield f"generation {size} {name}: {share:.1%} of a large copy's bandwidth there"
