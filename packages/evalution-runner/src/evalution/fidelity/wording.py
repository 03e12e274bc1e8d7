"""A fidelity result in words: the sentence that answers the question, and remarks on it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from statistics import median_low
from typing import Any

from evalution.fidelity.result import (
    ChoiceFlips,
    Divergence,
    Estimate,
    FidelityResult,
    GreedyDivergence,
    Side,
    SuiteFidelity,
)
from evalution.redaction import mask_text

_LEAST_DECIMALS = 4
_LEAST_PLAIN = 1e-4
"""Numbers below this one are shown with an exponent."""
_TAIL_SHARE = 0.5
_UNSAFE = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    r"|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Characters that rule a terminal, that XML can't hold, or that turn the direction of text."""
_FLOATS = ("none", "f32", "f16", "bf16", "float32", "float16", "bfloat16")


def format_nats(value: float, scale: float | None = None) -> str:
    """Return a divergence in four decimals, or as many as show two digits of `scale`.

    `scale` is the largest of the numbers that stand beside it; without it, the value's own size.
    """
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value) if scale is None else scale
    if not size or math.isinf(size) or math.isnan(value):
        return f"{value:g}"
    if size < _LEAST_PLAIN:
        text = f"{value:.1e}"
    else:
        text = f"{value:.{max(_LEAST_DECIMALS, 1 - math.floor(math.log10(size)))}f}"
    return text.replace("-", "−")


def format_estimate(estimate: Estimate, *, is_lower_bound: bool = False) -> str:
    """Return a mean with its interval: `0.0009 (0.0002 to 0.0016)`, `≥` before a lower bound."""
    bound = "≥ " if is_lower_bound else ""
    if estimate.low is None or estimate.high is None:
        return bound + format_nats(estimate.value)
    scale = max(abs(end) for end in (estimate.value, estimate.low, estimate.high))
    value, low, high = (
        format_nats(end, scale) for end in (estimate.value, estimate.low, estimate.high)
    )
    return f"{bound}{value} ({low} to {high})"


def format_kl(divergence: Divergence) -> str:
    """Return the mean KL with its interval; `∞ (0.0010 elsewhere)` where a token is excluded."""
    if divergence.infinite:
        return f"∞ ({format_nats(divergence.kl.value)} elsewhere)"
    return format_estimate(divergence.kl, is_lower_bound=divergence.is_lower_bound)


def format_share(share: float) -> str:
    """Return a share in per cent; one that isn't whole is never shown as 0 or as 100 %."""
    text = f"{share:.2%}"
    if text == "100.00%" and share < 1:
        text = "> 99.99%"
    elif text == "0.00%" and share > 0:
        text = "< 0.01%"
    return text.replace("%", " %")


def clean_text(text: str) -> str:
    """Return `text` in one line, without credentials, and without characters that aren't shown."""
    return mask_text(_UNSAFE.sub("�", " ".join(text.split())))


def name_model(side: Side) -> str:
    """Return the label or path of a side's model."""
    return clean_text(str(side.model.get("label") or side.model.get("path") or "default model"))


def name_engine(side: Side) -> str:
    """Return a side's engine with the precision or the quantisation that it reported."""
    name = str(side.engine.get("name") or "a live session")
    execution: Mapping[str, Any] = side.engine.get("execution") or {}
    precision = find_quantization(side) or execution.get("dtype")
    return clean_text(f"{name} ({precision})" if precision else name)


def name_side(side: Side) -> str:
    """Return a side as its model on its engine."""
    return f"{name_model(side)} on {name_engine(side)}"


def find_quantization(side: Side) -> str | None:
    """Return the type of quantised weights as the session reported it, such as `Q8_0`."""
    execution: Mapping[str, Any] = side.engine.get("execution") or {}
    found = execution.get("quantization") or execution.get("weights")
    if not isinstance(found, str) or found.lower() in _FLOATS:
        return None
    bits = execution.get("bits")
    return f"{found}, {bits} bits" if isinstance(bits, int) else found


def describe_mode(result: FidelityResult) -> str:
    """Return how much of each distribution was compared."""
    if result.top is None:
        return f"all {result.vocabulary:,} tokens of the vocabulary"
    return f"the {result.top} most likely tokens"


def describe_result(result: FidelityResult) -> list[str]:
    """Return the result in sentences: what the change cost, then what a reader should know of it.

    The notes of the result aren't among them.
    """
    whole = result.overall
    arms = [("candidate", whole.candidate)]
    if whole.control is not None:
        arms.append(("control", whole.control))
    lines = [_describe_cost(result), *_describe_doubt(result)]
    lines += [line for name, arm in arms for line in _describe_bound(name, arm.divergence)]
    lines += [line for name, arm in arms for line in _describe_zero(name, arm.divergence)]
    candidate = whole.candidate
    lines += _describe_tail(candidate.divergence)
    lines += _describe_flips(candidate.flips)
    lines += _describe_greedy(candidate.greedy)
    return lines


def _describe_cost(result: FidelityResult) -> str:
    """Return the sentence that the measurement was made for."""
    whole = result.overall
    divergence = whole.candidate.divergence
    shown = ("at least " if divergence.is_lower_bound else "") + _add_unit(divergence.kl)
    if whole.control is not None and whole.contrast is not None:
        return _describe_contrast(result, whole, whole.contrast)
    left, right = result.reference.engine, result.candidate.engine
    has_engines = None not in (left.get("name"), right.get("name"))
    has_same_engine = has_engines and left["name"] == right["name"]
    has_same_model = _has_same_model(result)
    if has_engines and has_same_model:
        if not has_same_engine:
            return f"Changing the engine costs {shown}."
        if left.get("options") != right.get("options"):
            return f"Changing the options of the engine costs {shown}."
        return f"The same model on the same engine differs from itself by {shown}."
    is_known = has_same_model is not None and has_same_engine
    if is_known and left.get("options") == right.get("options"):
        return f"{_name_change(result)} cost {shown}; the engine is the same on both sides."
    return (
        f"The candidate lies {shown} from the reference; without a control, what the engine "
        "changed and what the weights changed can't be separated."
    )


def _describe_contrast(result: FidelityResult, whole: SuiteFidelity, contrast: Estimate) -> str:
    assert whole.control is not None
    candidate, control = whole.candidate.divergence, whole.control.divergence
    value, change = _add_unit(contrast), _name_change(result)
    if candidate.is_lower_bound or control.is_lower_bound:
        return (
            f"{change} and the engine can't be separated: the candidate lies "
            f"{format_kl(candidate)} nats from the reference, the control {format_kl(control)}, "
            "and a difference is no bound where one of these is a lower bound."
        )
    floor = f"beyond the {format_nats(control.kl.value)} that changing the engine costs"
    if contrast.low is not None and contrast.high is not None:
        if contrast.low <= 0 <= contrast.high:
            return f"{change} cost nothing that is clear of zero: {value} {floor}."
        if contrast.high < 0:
            return (
                f"{change} brought the candidate nearer to the reference than the control: "
                f"{value} {floor}."
            )
    return f"{change} cost {value} {floor}."


def _describe_doubt(result: FidelityResult) -> Iterator[str]:
    whole = result.overall
    divergence = whole.candidate.divergence
    if divergence.infinite:
        yield (
            f"At {divergence.infinite:,} of {divergence.positions:,} positions the candidate calls "
            "a token impossible that the reference doesn't: KL is infinite there, and the mean "
            "leaves them out."
        )
    if divergence.reverse_infinite:
        yield (
            f"At {divergence.reverse_infinite:,} of {divergence.positions:,} positions the "
            "reference calls a token impossible that the candidate doesn't: the reverse KL is "
            "infinite there, and its mean leaves them out."
        )
    if divergence.kl.low is None and math.isfinite(divergence.kl.value):
        yield "There is no interval: it takes at least two documents to estimate one."
    contrast = whole.contrast
    if contrast is not None and contrast.value == contrast.low == contrast.high == 0.0:
        yield (
            "Candidate and control are equally far from the reference everywhere: make sure that "
            "they weren't given the same file."
        )


def _describe_bound(name: str, divergence: Divergence) -> Iterator[str]:
    if divergence.is_lower_bound:
        yield (
            f"The divergences of the {name} are lower bounds: the tokens that were compared cover "
            f"{format_share(divergence.covered)} of the reference's probability in the mean."
        )


def _describe_zero(name: str, divergence: Divergence) -> Iterator[str]:
    if divergence.maximum == 0 and divergence.positions:
        cause = (
            "changing the engine changed nothing"
            if name == "control"
            else "make sure that both sides weren't given the same file"
        )
        yield (
            f"The difference of the {name} is exactly zero at all {divergence.positions:,} "
            f"positions: {cause}."
        )


def _describe_tail(divergence: Divergence) -> Iterator[str]:
    if 0 < divergence.kl.value < math.inf and divergence.top_share >= _TAIL_SHARE:
        yield (
            f"A few tokens dominate the mean: the worst 1 % of positions carry "
            f"{format_share(divergence.top_share)} of it, and half of all have at most "
            f"{format_nats(divergence.median)}."
        )


def _describe_flips(flips: ChoiceFlips | None) -> Iterator[str]:
    if flips is not None and flips.questions and not flips.changed:
        yield f"All {flips.questions:,} questions are answered alike."
    elif flips is not None and flips.questions:
        yield (
            f"Of {flips.questions:,} questions the candidate answers {flips.changed:,} otherwise: "
            f"{flips.right_to_wrong:,} turned wrong, {flips.wrong_to_right:,} turned right."
        )


def _describe_greedy(greedy: GreedyDivergence | None) -> Iterator[str]:
    if greedy is not None and greedy.prompts:
        line = f"Of {greedy.prompts:,} greedy completions {greedy.same:,} are the same"
        if greedy.first_steps:
            line += f"; half of the others differ within {median_low(greedy.first_steps)} tokens"
        yield f"{line}."


def _add_unit(estimate: Estimate) -> str:
    """Return a mean in nats with its interval: `0.0124 nats (0.0110 to 0.0138)`."""
    value, bracket, interval = format_estimate(estimate).partition(" (")
    return f"{value} nats{bracket}{interval}"


def _name_change(result: FidelityResult) -> str:
    """Return what distinguishes the candidate's weights from the control's."""
    before = result.control or result.reference
    found = find_quantization(result.candidate)
    return "Quantisation" if found and found != find_quantization(before) else "The other weights"


def _has_same_model(result: FidelityResult) -> bool | None:
    """Return whether both sides read the same weights; labels are the reader's own.

    None where a side has neither a path nor an identity, as a live session may.
    """
    sides = (result.reference, result.candidate)
    left, right = (
        {name: value for name, value in side.model.items() if name != "label"} for side in sides
    )
    before, after = (side.engine.get("identity") for side in sides)
    if not all(side.model.get("path") or side.engine.get("identity") for side in sides):
        return None
    return left == right and (left.get("path") is not None or before == after)
