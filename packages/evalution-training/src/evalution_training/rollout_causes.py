"""Causes of a distance between a model in training and a rollout server, each by its signature.

A cause is a hypothesis about what the server runs. It is named where the training model, changed as
the hypothesis says, is at least ten times nearer to the server, in mean KL, than as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evalution.fidelity.divergence import Logprobs, TopRows
from evalution.fidelity.lockstep import Blocks, RowSource, open_rows
from evalution.fidelity.requests import Window
from evalution_core import RequestFailure
from evalution_training.training_side import TrainingSide, measure_kl

Values: TypeAlias = NDArray[np.float64]
CauseName: TypeAlias = Literal["missing adapter", "stale weights", "dtype", "temperature"]
GAIN: Final = 10.0
"""By which a hypothesis has to lower the mean KL."""
_FINGERPRINT: Final = 256
_SIZE: Final = 4.0
"""Factor by which a distance of the size of rounding may differ from it."""
_GRIDS: Final = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Distance of neighbouring numbers of the dtype from 0.5 on: that of larger ones is a multiple."""
_TOP, _NOISE, _MOST = 20, 2e-6, 0.9
_WINDOWS, _POSITIONS = 16, 64


@dataclass(frozen=True, slots=True)
class Cause:
    """A hypothesis that holds; `residual` is the mean KL in nats that it leaves unexplained.

    It is None for a dtype that shows in the server's logits alone.
    """

    name: CauseName
    detail: str
    residual: float | None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Log-probabilities of the text's tokens at up to 256 positions; NaN where none are known."""

    values: Values

    @classmethod
    def sample(cls, logprobs: Values) -> Fingerprint:
        """Take positions at even distances."""
        step = max(1, -(-len(logprobs) // _FINGERPRINT))
        return cls(logprobs[::step])

    def measure_distance(self, other: Fingerprint) -> float:
        """Return the mean square of the differences, in nats²; ∞ if nothing can be compared."""
        if self.values.shape != other.values.shape:
            return float("inf")
        squares = np.square(self.values - other.values)
        finite = squares[np.isfinite(squares)]
        return float(finite.mean()) if len(finite) else float("inf")


@dataclass(frozen=True, slots=True)
class _Rescaled:
    """Rows at another temperature."""

    source: RowSource
    temperature: float

    def read(self, windows: Sequence[Window]) -> Blocks:
        for key, block in self.source.read(windows):
            is_rows = not isinstance(block, TopRows | RequestFailure)
            yield key, rescale_rows(block, 1 / self.temperature) if is_rows else block


@dataclass(frozen=True, slots=True)
class Distance:
    """A server's rows, which are `kl` nats from the training model's on these windows."""

    training: TrainingSide
    rollout: RowSource
    windows: Sequence[Window]
    top: int
    kl: float

    def find_causes(
        self, current: Fingerprint, found: Fingerprint, earlier: Mapping[int, Fingerprint]
    ) -> list[Cause]:
        """Return the causes that hold, that which leaves least first.

        `current` and `found` are of the training model and the server at this step, `earlier` of
        the training model at steps before.
        """
        tried = [
            *self._try_adapters(),
            *self._try_steps(current, found, earlier),
            *self._try_dtypes(),
            *self._try_temperature(),
        ]
        held = [
            (cause.residual, cause)
            for cause in tried
            if cause.residual is not None and cause.residual <= self.kl / GAIN
        ]
        # Of those that explain all but a thousandth, the first one is the most specific.
        held.sort(key=lambda each: max(each[0], self.kl / GAIN**3))
        return [cause for _, cause in held]

    def weigh_rounding(self) -> tuple[list[Cause], str]:
        """Return the dtype as the cause, if the server's logits show it, and the size in words.

        Kernels round differently, so the model's own pass in a dtype needn't be nearer to a server
        in it. Its logits then lie on the dtype's grid, and its distance is that of rounding.
        """
        for dtype in self.training.other_dtypes:
            size = self.training.measure_rounding(dtype, self.windows, self.top)
            if not size / _SIZE <= self.kl <= size * _SIZE:
                continue
            detail = f"of the size that rounding to {dtype} has ({size:.2g} nats)"
            step = _GRIDS.get(dtype)
            if self.training.dtype == "float32" and step and self._has_grid(step):
                detail = f"its logits are rounded to {dtype}, and the distance is {detail}"
                return [Cause("dtype", detail, None)], detail
            return [], detail
        return [], "no known cause explains it"

    def _has_grid(self, step: float) -> bool:
        """True if nearly all likely tokens' logits differ by multiples of `step`."""
        shares: list[float] = []
        for block in _read_whole(
            self.rollout, [_shorten(each) for each in self.windows[:_WINDOWS]]
        ):
            if block is not None:
                rows = block.logprobs if isinstance(block, TopRows) else block
                top = np.sort(rows.astype(np.float64), axis=1)[:, : -_TOP - 1 : -1]
                steps = (top[:, :1] - top[:, 1:]) / step
                shares.append(float((np.abs(steps - np.round(steps)) * step < _NOISE).mean()))
        return bool(shares) and float(np.mean(shares)) > _MOST

    def _measure_from(self, dtype: str | None = None, *, with_adapters: bool = True) -> float:
        with self.training.open(dtype, with_adapters=with_adapters) as session:
            return measure_kl(open_rows(session, self.top), self.rollout, self.windows)

    def _try_adapters(self) -> Iterator[Cause]:
        if self.training.has_adapters:
            residual = self._measure_from(with_adapters=False)
            yield Cause("missing adapter", "it runs the model without its adapters", residual)

    def _try_steps(
        self, current: Fingerprint, found: Fingerprint, earlier: Mapping[int, Fingerprint]
    ) -> Iterator[Cause]:
        """Try earlier weights: for small differences, KL goes as the square of the distance."""
        if not earlier:
            return
        far = current.measure_distance(found)
        distances = {step: found.measure_distance(each) for step, each in earlier.items()}
        step = min(sorted(distances, reverse=True), key=lambda each: distances[each])
        if 0 < far < float("inf"):
            residual = self.kl * distances[step] / far
            yield Cause("stale weights", f"it runs the weights of step {step}", residual)

    def _try_dtypes(self) -> Iterator[Cause]:
        for dtype in self.training.other_dtypes:
            yield Cause("dtype", f"it computes in {dtype}", self._measure_from(dtype))

    def _try_temperature(self) -> Iterator[Cause]:
        with self.training.open() as session:
            rows = open_rows(session, self.top)
            temperature = estimate_temperature(rows, self.rollout, self.windows)
            if temperature is not None:
                residual = measure_kl(_Rescaled(rows, temperature), self.rollout, self.windows)
                detail = f"its distributions are at temperature {temperature:.3g}"
                yield Cause("temperature", detail, residual)


def rescale_rows(rows: Logprobs, factor: float) -> Logprobs:
    """Return the rows of logits that are `factor` times as large."""
    scaled = rows * np.float32(factor)
    scaled -= scaled.max(1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(1, keepdims=True))


def estimate_temperature(
    reference: RowSource, side: RowSource, windows: Sequence[Window]
) -> float | None:
    """Estimate T where the side is softmax(log-probabilities of the reference / T).

    Least squares on log-probabilities centred at each position, weighted by probability: to second
    order, that is the T of the least KL. None if the reference has no whole rows, or T is no
    positive number.
    """
    shortened = [_shorten(window) for window in windows[:_WINDOWS]]
    products = squares = 0.0
    pairs = zip(_read_whole(reference, shortened), _read_whole(side, shortened), strict=True)
    for before, after in pairs:
        if isinstance(before, TopRows):
            return None
        if before is None or after is None:
            continue
        if isinstance(after, TopRows):
            is_known = after.token_ids >= 0
            x = np.take_along_axis(before, np.maximum(after.token_ids, 0), 1).astype(np.float64)
            y = after.logprobs.astype(np.float64)
        else:
            is_known = np.ones(after.shape, np.bool_)
            x, y = before.astype(np.float64), after.astype(np.float64)
        is_known &= np.isfinite(x) & np.isfinite(y)
        x, y = np.where(is_known, x, 0.0), np.where(is_known, y, 0.0)
        weights = np.exp(x) * is_known
        totals = np.maximum(weights.sum(1, keepdims=True), 1e-30)
        x = x - (weights * x).sum(1, keepdims=True) / totals
        y = y - (weights * y).sum(1, keepdims=True) / totals
        products += float((weights * x * y).sum())
        squares += float((weights * x * x).sum())
    return squares / products if squares > 0 and products > 0 else None


def _shorten(window: Window) -> Window:
    """Return the window with its last positions alone, so that their rows fit into memory."""
    return Window(window.input_ids, max(window.start, len(window.input_ids) - _POSITIONS))


def _read_whole(
    source: RowSource, windows: Sequence[Window]
) -> Iterator[Logprobs | TopRows | None]:
    """Yield all rows of each window; None of one that failed."""
    for window in windows:
        rows: list[Logprobs] = []
        tops: list[TopRows] = []
        for _, block in source.read([window]):
            if isinstance(block, TopRows):
                tops.append(block)
            elif isinstance(block, RequestFailure):
                rows.clear()
            else:
                rows.append(block.copy())  # it is valid until the next one is asked for
        yield tops[0] if tops else np.concatenate(rows) if rows else None
