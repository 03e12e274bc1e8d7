"""A noise result for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from evalution.fidelity.wording import format_nats, format_share, name_side
from evalution.noise.result import (
    CLONED,
    CONDITIONS,
    DETERMINISTIC,
    FAMILY_ERROR,
    RANDOM,
    SEED_IGNORED,
    UNDECIDED,
    Differences,
    NoiseResult,
    Sampling,
)

_NARROW = 100
_SHOWN = ("changed", "largest |Δ|", "RMS Δ", "flips", "texts", "share", "p")
_SHOWN_NARROW = ("largest |Δ|", "flips", "share")
_CAUSES = {
    "order-variant": "the requests before it move a request's numbers",
    "cache-variant": "what the caches hold moves the numbers",
    "batch-variant": "what is computed at the same time moves the numbers",
    "restart-variant": "a new session moves the numbers",
}
_MEANINGS = {
    DETERMINISTIC: "no condition changes a digit.",
    UNDECIDED: "repeats are the same, and too few rows changed under a condition to judge it.",
    SEED_IGNORED: "the seed of a request doesn't decide its sample.",
    CLONED: "samples of one prompt are copies of each other.",
}
LEGEND = (
    "changed: requests whose answer differs at all; |Δ|: between two log-probabilities of a token, "
    "in nats; flips, texts: other answers to questions and other greedy texts between two passes, "
    f"at most; share: of the variance; p: of chance alone, counts up to {FAMILY_ERROR:g}"
)


def list_headings(result: NoiseResult) -> Iterator[str]:
    """Yield lines that name the engine, and what it was asked."""
    yield f"engine: {name_side(result.side)}"
    yield f"asked:  {result.requests:,} requests of {result.rows:,} rows in each pass"


def make_noise_table(result: NoiseResult, *, width: int) -> Table:
    """A row for repeats and each condition; on less than 100 columns fewer figures."""
    shown = _SHOWN if width >= _NARROW else _SHOWN_NARROW
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("condition", overflow="fold")
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    cells = _make_cells(result, result.repeats, result.repeat_share)
    table.add_row("repeats", *(cells[name] for name in shown))
    for condition in result.conditions:
        cells = _make_cells(result, condition.differences, condition.share)
        p = condition.p_value
        cells["p"] = "< 1e−99" if p < 1e-99 else f"{p:.2g}".replace("-", "−")
        table.add_row(condition.name, *(cells[name] for name in shown))
    return table


def _make_cells(result: NoiseResult, found: Differences, share: float | None) -> dict[str, str]:
    return {
        "changed": format_share(found.changed),
        "largest |Δ|": "–" if found.tokens == 0 else format_nats(found.largest),
        "RMS Δ": "–" if found.tokens == 0 else format_nats(found.rms),
        "flips": f"{found.flips}/{result.questions}" if result.questions else "–",
        "texts": f"{found.texts}/{result.completions}" if result.completions else "–",
        "share": "–" if share is None else format_share(share),
        "p": "",
    }


def list_remarks(result: NoiseResult) -> Iterator[str]:
    """Yield conditions that can't be judged, and what was left out."""
    yield from result.notes
    for condition in result.conditions:
        if condition.counts and CONDITIONS[condition.name] not in result.verdicts:
            yield (
                f"{condition.name}: it changes the order of requests too, which alone changes the "
                "numbers, so it can't be judged"
            )
        elif not condition.counts and condition.differences.changed and not result.repeats.changed:
            yield (
                f"{condition.name}: {condition.differences.rows} of {result.rows} rows changed, "
                "too few to distinguish from chance; ask more rows (--limit)"
            )


def list_verdicts(result: NoiseResult) -> Iterator[str]:
    """Yield a line for each verdict, and one about samples."""
    for verdict in result.verdicts:
        yield f"{verdict}: {_explain(result, verdict)}"
    if result.sampling is not None:
        yield _describe_sampling(result.sampling)


def _explain(result: NoiseResult, verdict: str) -> str:
    if verdict == DETERMINISTIC and result.repeats.tokens == 0:
        return "no condition changes a text; the engine gave no log-probabilities to compare."
    if verdict in _MEANINGS:
        return _MEANINGS[verdict]
    if verdict == RANDOM:
        return f"the same pass again moves the numbers by up to {_measure(result.repeats)}."
    found = [
        condition.differences
        for condition in result.conditions
        if condition.counts and CONDITIONS[condition.name] == verdict
    ]
    return f"{_CAUSES[verdict]} by up to {_measure(*found)}."


def _measure(*found: Differences) -> str:
    flips, texts = max(one.flips for one in found), max(one.texts for one in found)
    largest = format_nats(max(one.largest for one in found))
    return f"{largest} nats; answers flipped: {flips}, texts parted: {texts}"


def _describe_sampling(found: Sampling) -> str:
    clones = f"{found.cloned} of {found.prompts} prompts gave {found.samples} equal samples"
    if found.same_seed is None:
        return f"samples: {clones}; the engine has no seeds"
    return (
        f"samples: {found.same_seed} of {found.prompts} came again with the same seed, "
        f"{found.other_seed} with another; {clones}"
    )
