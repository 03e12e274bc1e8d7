"""The runs that a compiled model allows, tried on a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy

from evalution_core import ConfigurationError
from evalution_core.redaction import redact_text
from evalution_enginekit.self_check import logits_alike, probe_ids
from evalution_enginekit.serving_session import name_precision
from evalution_openvino.runtime import load_openvino, read_execution
from evalution_openvino.stateful import (
    Logits,
    Pass,
    RunForms,
    StatefulRequest,
    ask_for_last_rows,
    choose_rows,
    report_memory_errors,
)
from evalution_openvino.upstream import Compiled, Graph
from evalution_transformers.probe import find_config_obstacle, read_text_config, rotates_by_length

_HEAD, _SHORT = 6, 3
_INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_COMPRESSED = {"u2", "u3", "u4", "i4", "u6", "u8", "i8", "nf4", "f4e2m1", "f8e4m3", "f8e5m2"}
"""OpenVINO's names of types that weights are compressed to."""


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A compiled model and the runs that it allows.

    Attributes:
        pads_left: prompts of different lengths may be completed in one batch.
        execution: its own part of `describe_execution`.
    """

    request: StatefulRequest
    forms: RunForms
    pads_left: bool
    execution: dict[str, Any]


def compile_and_probe(loaded: Any, device: str, window: int) -> ProbedModel:
    """Compile a model for the device, and try which runs it allows.

    Raises:
        ConfigurationError: it keeps no state, isn't causal, or can't be compiled.
    """
    _refuse_without_state(loaded.model)
    report_memory_errors(loaded)
    compression = find_compression(loaded.model)
    picks_rows = choose_rows(loaded.model)
    if picks_rows:
        ask_for_last_rows(loaded)
    try:
        loaded.compile()
    except RuntimeError as error:
        raise ConfigurationError(
            f"OpenVINO {load_openvino().__version__} can't compile the model for {device}: "
            f"{_last_line(error)}"
        ) from error
    compiled = cast(Compiled, loaded.request.get_compiled_model())
    execution = read_execution(compiled)
    request = StatefulRequest(compiled, picks_rows=picks_rows)
    config = read_text_config(loaded.config)
    probe = Probe(request, int(config.vocab_size), execution["dtype"])
    forms = probe.forms()
    equal_lengths = rotates_by_length(config)
    obstacle = find_config_obstacle(config, window)
    if obstacle is None and not forms.shares:
        obstacle = "its logits differ when prefixes are shared"
    if obstacle is not None:
        forms = RunForms(shares=False, cuts=False, pads=forms.pads and not equal_lengths)
    precision = execution["dtype"] or "unknown"
    described = {
        **execution,
        "dtype": name_precision(precision, compression, execution["kv_cache_dtype"]),
        "quantization": compression,
        "exported": "before" if loaded.evalution_export is None else "on load",
        "scoring": "shared prefixes" if forms.shares else "padded rows",
        "scoring_fallback": obstacle,
        "logits": "chosen rows" if picks_rows else "all rows",
    }
    pads_left = probe.pads(left=True) and not equal_lengths
    return ProbedModel(request, forms, pads_left, described)


def find_compression(model: Graph) -> str | None:
    """Return the types of compressed weights, as in `u4 and u8 weights`; None if there are none."""
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    found = {str(node.get_element_type().get_type_name()) for node in constants} & _COMPRESSED
    return f"{' and '.join(sorted(found))} weights" if found else None


def _refuse_without_state(model: Graph) -> None:
    names = {name for port in model.inputs for name in port.get_names()}
    if names - _INPUTS or not model.get_variables():
        raise ConfigurationError(
            f"the OpenVINO files hold no stateful causal model (inputs: {', '.join(sorted(names))})"
            f"; export it again with optimum-cli export openvino --task text-generation-with-past"
        )


def _last_line(error: RuntimeError) -> str:
    """Return the problem, which stands below a list of OpenVINO's own source files."""
    lines = [line.strip() for line in redact_text(str(error)).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class Probe:
    """Runs two short sequences with a common beginning, alone and in other forms.

    Raises:
        ConfigurationError: the model isn't causal.
    """

    def __init__(self, request: StatefulRequest, vocab_size: int, dtype: str | None):
        ids = probe_ids(vocab_size)
        self._request = request
        # Half precision leaves the key-value cache narrower still.
        self._dtype = dtype if dtype == "float32" else None
        self._head, self._left, self._right = ids[:_HEAD], ids[_HEAD:10], ids[10:]
        self._longer, self._shorter = self._head + self._left, self._head + self._right
        self._with_longer = self._alone(self._longer)
        self._with_shorter = self._alone(self._shorter)
        if not self._alike(self._with_longer[:_HEAD], self._with_shorter[:_HEAD]):
            raise ConfigurationError(
                "the model's logits at a token depend on the tokens after it; this engine runs "
                "causal models alone"
            )

    def forms(self) -> RunForms:
        """Return the forms of a run that give the model's own logits."""
        shares = self._request.continues and self._shares()
        return RunForms(shares, shares and self._cuts(), self.pads(left=False))

    def pads(self, *, left: bool) -> bool:
        """Return whether padding, on the left as `generate` adds it, leaves logits unchanged."""
        longer, shorter = len(self._longer), len(self._shorter)
        gap = longer - shorter
        padded, seen = self._shorter + [0] * gap, [1] * shorter + [0] * gap
        place, begin = list(range(longer)), longer
        if left:
            padded, seen = [0] * gap + self._shorter, [0] * gap + [1] * shorter
            place, begin = [*[1] * gap, *range(shorter)], longer + gap
        found = self._fresh([self._longer, padded], [[1] * longer, seen], [range(longer), place])
        return self._alike(self._with_longer, found[:longer]) and self._alike(
            self._with_shorter, found[begin : begin + shorter]
        )

    def _shares(self) -> bool:
        """Run the beginning in two parts, two ends behind it, and one token more behind padding."""
        self._fresh([self._head[:3]], [[1] * 3], [range(3)])
        self._run([self._head[3:]], [[1] * _HEAD], [range(3, _HEAD)], [0])
        ends = [self._left[:2], [self._right[0], 0]]
        mask = [[1] * 8, [1] * 7 + [0]]
        both = self._run(ends, mask, [range(_HEAD, 8)] * 2, [0, 0])
        last = [self._right[1:], self._right[1:], self._left[2:]]
        mask = [[*mask[1], 1, 1], [*mask[1], 1, 1], [*mask[0], 1, 1]]
        rest = self._run(last, mask, [range(7, 9), range(7, 9), range(8, 10)], [1, 1, 0])
        longer = numpy.concatenate((both[:2], rest[4:]))
        shorter = numpy.concatenate((both[2:3], rest[:2]))
        return self._alike(self._with_longer[_HEAD:], longer) and self._alike(
            self._with_shorter[_HEAD:], shorter
        )

    def _cuts(self) -> bool:
        self._fresh([self._longer], [[1] * 10], [range(10)])
        state = self._request.save()
        if not state.is_cuttable:
            return False
        self._request.restore(state.first(_HEAD))
        found = self._run([self._right], [[1] * 9], [range(_HEAD, 9)], [0])
        return self._alike(self._with_shorter[_HEAD:], found)

    def _alone(self, token_ids: list[int]) -> Logits:
        return self._fresh([token_ids], [[1] * len(token_ids)], [range(len(token_ids))])

    def _fresh(
        self,
        token_ids: Sequence[Sequence[int]],
        mask: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
    ) -> Logits:
        self._request.reset()
        return self._run(token_ids, mask, positions, range(len(token_ids)))

    def _run(
        self,
        token_ids: Sequence[Sequence[int]],
        mask: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
        origins: Sequence[int],
    ) -> Logits:
        fed = numpy.array(token_ids, numpy.int64)
        every = numpy.arange(fed.size)
        given = Pass(
            fed, numpy.array(positions, numpy.int64), numpy.array(mask, numpy.int64), origins, every
        )
        return self._request.run(given).copy()

    def _alike(self, expected: Logits, found: Logits) -> bool:
        """Return whether each row of `found` is the expected one, up to the order of sums."""
        distances = numpy.sqrt(numpy.square(found - expected).mean(axis=-1))
        return logits_alike(distances.tolist(), expected.std(axis=-1).tolist(), self._dtype)
