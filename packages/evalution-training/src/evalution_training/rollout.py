"""Check that a rollout server runs the weights that are in training, step by step."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from evalution import Perplexity
from evalution.fidelity.lockstep import WindowComparison, open_rows
from evalution.fidelity.measurement import FidelityOptions, measure_fidelity
from evalution.fidelity.requests import Window
from evalution.fidelity.result import FidelityResult
from evalution.fidelity.sides import LiveSession
from evalution.runs.preflight import EngineAndModel, check_engine, check_model
from evalution.suites.suite import SuiteDeclaration
from evalution_core import BaseEngine, BaseInferenceSession, ConfigurationError, Model
from evalution_training.rollout_causes import Cause, Distance, Fingerprint
from evalution_training.rollout_samples import SampleFigures, measure_samples, sample_tokens
from evalution_training.training_side import TrainingSide

IN_SYNC, UNEXPLAINED = "in sync", "unexplained"
LEAST_TOLERANCE = 1e-9
_MARGIN = 4.0
"""Times the training model's own rounding: both sides round, and kernels differ."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """A step's report; `causes` has the hypotheses that explain a distance, the best one first.

    `verdict` is `in sync`, the name of the best cause, or `unexplained`; `detail` says it in words.
    """

    step: int
    fidelity: FidelityResult
    verdict: str
    detail: str
    causes: list[Cause]
    tolerance: float
    samples: SampleFigures | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON line: no histograms, no tokens; an infinite figure is None."""
        found = self.fidelity.overall.candidate.divergence
        return {
            "step": self.step,
            "verdict": self.verdict,
            "detail": self.detail,
            "positions": found.positions,
            "infinite": found.infinite,
            "failed": found.failed,
            "is_lower_bound": found.is_lower_bound,
            "kl": _replace_infinity(asdict(found.kl)),
            "reverse_kl": _replace_infinity(asdict(found.reverse_kl)),
            "same_top": asdict(found.same_top),
            "tolerance": self.tolerance,
            "causes": [_replace_infinity(asdict(cause)) for cause in self.causes],
            "samples": None if self.samples is None else _replace_infinity(asdict(self.samples)),
            "seconds": round(self.seconds, 3),
        }


def _describe_gaps(fidelity: FidelityResult) -> str:
    """Return what of the distributions wasn't compared, as an end of a sentence."""
    found = fidelity.overall.candidate.divergence
    text = ""
    if found.is_lower_bound:
        text = f", a lower bound: {found.covered:.1%} of the probability was compared"
    return text + (f"; {found.failed} windows failed" if found.failed else "")


class RolloutCheck:
    """Holds a model in training against the server of its rollouts, and names what is wrong.

    Each check attaches to the model, scores the tests on both sides in lockstep, and appends a JSON
    line to `output`. Past the tolerance, causes are looked for, at the cost of one more pass each:
    adapters that are off, weights of an earlier check, another dtype (in a copy of the model, so
    its memory once more), a temperature.

    Args:
        engine: has the capability `attach`.
        handles: what a backend prepared, or the loop's own `model` and `tokenizer`.
        rollout: an open session, which stays open, or an engine and its model, built at each check.
        tests: a text, or suites; some thousand tokens suffice.
        output: the file of JSON lines; None writes none.
        model: for an engine that needs more than the handles hold, and as the report names it.
        tolerance: mean KL in nats up to which both are in sync. None: four times what the rounding
            of the model's own dtype has, measured by one pass in a wider one at the first check.
        samples: tokens that the server samples for k1, k3 and the temperature; 0: none.
        temperature: at which rollouts are to be sampled.
        options: `window`, `top` and `limit` count.

    Raises:
        ConfigurationError: a number is out of its range, or the engine or its model is wrong.
    """

    def __init__(
        self,
        engine: BaseEngine,
        handles: Mapping[str, Any],
        rollout: BaseInferenceSession | EngineAndModel,
        tests: str | Sequence[SuiteDeclaration],
        output: str | Path | None = None,
        *,
        model: Model | None = None,
        tolerance: float | None = None,
        samples: int = 0,
        temperature: float = 1.0,
        options: FidelityOptions | None = None,
    ):
        if tolerance is not None and not 0 <= tolerance < math.inf:
            raise ConfigurationError(
                f"tolerance must be a finite number from 0, in nats, got {tolerance}"
            )
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ConfigurationError(f"temperature must be a number above 0, got {temperature}")
        if samples < 0:
            raise ConfigurationError(f"samples must be a number of tokens from 0, got {samples}")
        if isinstance(rollout, EngineAndModel):
            check_model(rollout.model, check_engine(rollout.engine))
        self._training = TrainingSide(engine, handles, model)
        self._rollout = rollout
        if isinstance(tests, str):
            tests = [Perplexity(name="text", data=[{"text": tests}], text="text")]
        self._tests = tests
        self._output = None if output is None else Path(output)
        self._tolerance = tolerance
        self._samples = samples
        self._temperature = temperature
        self._options = options or FidelityOptions()
        self._fingerprints: dict[int, Fingerprint] = {}

    def check(self, step: int) -> RolloutResult:
        """Compare both sides at this step, and append the JSON line.

        Raises:
            ConfigurationError: the two don't fit together, or no tolerance can be measured: the
                model isn't in this process, or its copy in a wider dtype fails.
            EvalutionError: an engine failed.
        """
        before = perf_counter()
        with self._open_rollout() as rollout:
            fidelity, compared = self._measure(rollout)
            distance = self._make_distance(rollout, fidelity, compared)
            tolerance = self._find_tolerance(distance.windows)
            samples = self._measure_samples(rollout.session, distance.windows, step)
            current = _sample_fingerprint(compared, "reference_logprob")
            causes: list[Cause] = []
            if distance.kl <= tolerance:
                verdict = IN_SYNC
                detail = (
                    f"{distance.kl:.2g} nats of at most {tolerance:.2g}{_describe_gaps(fidelity)}"
                )
                if samples is not None and samples.has_wrong_temperature:
                    causes = [Cause("temperature", samples.describe(), distance.kl)]
            elif math.isinf(distance.kl):
                verdict, detail = UNEXPLAINED, "the server excludes tokens, as top_p and top_k do"
            else:
                verdict = UNEXPLAINED
                found = _sample_fingerprint(compared, "logprob")
                causes = distance.find_causes(current, found, self._fingerprints)
                causes, detail = (causes, "") if causes else distance.weigh_rounding()
        if causes:
            verdict, detail = causes[0].name, causes[0].detail
        self._fingerprints[step] = current
        seconds = perf_counter() - before
        result = RolloutResult(step, fidelity, verdict, detail, causes, tolerance, samples, seconds)
        if self._output is not None:
            with self._output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result.to_dict(), allow_nan=False) + "\n")
        return result

    @contextmanager
    def _open_rollout(self) -> Generator[LiveSession]:
        given = self._rollout
        if isinstance(given, BaseInferenceSession):
            yield LiveSession(given)
        else:
            with given.engine.build(given.model) as session:
                yield LiveSession(session, given.model, given.engine)

    def _measure(
        self, rollout: LiveSession
    ) -> tuple[FidelityResult, list[tuple[Window, WindowComparison]]]:
        compared: list[tuple[Window, WindowComparison]] = []

        def observe(window: Window, found: WindowComparison) -> None:
            compared.append((window, found))

        options = replace(self._options, observe=observe)
        side = self._training
        with side.open() as session:
            training = LiveSession(session, side.model or Model(), side.engine)
            return measure_fidelity(training, rollout, self._tests, options), compared

    def _make_distance(
        self,
        rollout: LiveSession,
        fidelity: FidelityResult,
        compared: Sequence[tuple[Window, WindowComparison]],
    ) -> Distance:
        found = fidelity.overall.candidate.divergence
        return Distance(
            self._training,
            open_rows(rollout.session, self._options.top),
            [window for window, found in compared if found.figures is not None],
            self._options.top,
            math.inf if found.infinite else found.kl.value,
        )

    def _find_tolerance(self, windows: Sequence[Window]) -> float:
        """Return the tolerance, from the model's own rounding where none was given."""
        if self._tolerance is None:
            if self._training.dtype is None:
                raise ConfigurationError(
                    "the weights in training aren't in this process, so their rounding can't be "
                    "measured: give RolloutCheck a tolerance, in nats"
                )
            rounding = 0.0
            if (wider := self._training.wider_dtype) is not None:
                rounding = self._training.measure_rounding(wider, windows, self._options.top)
                if not math.isfinite(rounding):
                    raise ConfigurationError(
                        "the rounding of the weights in training can't be measured: no window of a "
                        f"copy of them in {wider} could be compared, as where memory runs out; "
                        "give RolloutCheck a tolerance, in nats, or leave the copy more memory"
                    )
            self._tolerance = max(LEAST_TOLERANCE, _MARGIN * rounding)
        return self._tolerance

    def _measure_samples(
        self, rollout: BaseInferenceSession, windows: Sequence[Window], step: int
    ) -> SampleFigures | None:
        if not self._samples:
            return None
        sampled = sample_tokens(rollout, windows, self._samples, self._temperature, step)
        if sampled is None:
            return None
        with self._training.open() as session:
            return measure_samples(
                open_rows(session, self._options.top), sampled, self._temperature
            )


def _sample_fingerprint(
    compared: Sequence[tuple[Window, WindowComparison]], name: str
) -> Fingerprint:
    values = [
        np.full(len(window.scored_ids), np.nan) if found.figures is None else found.figures[name]
        for window, found in compared
    ]
    return Fingerprint.sample(np.concatenate(values))


def _replace_infinity(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures as JSON has them, with None for what isn't finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }
