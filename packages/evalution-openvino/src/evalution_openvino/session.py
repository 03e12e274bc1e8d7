"""From the options of `OpenVINO` and a model to a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from evalution_core import Capability, Model
from evalution_openvino.generate import (
    PASS_TOKENS,
    GenaiBatching,
    find_genai,
    make_scheduler_settings,
)
from evalution_openvino.load import load_model
from evalution_openvino.options import OpenVINOOptions
from evalution_openvino.probe import compile_and_probe
from evalution_openvino.runtime import resolve_device
from evalution_openvino.score import PrefixTreeScorer
from evalution_transformers.generate import FixedBatches, Generation
from evalution_transformers.paged import cache_size
from evalution_transformers.probe import find_window
from evalution_transformers.session import TransformersSession

_BATCH_SIZE = 16
_STATE_TOKENS = 1 << 16


def make_session(
    options: OpenVINOOptions, capabilities: frozenset[Capability], model: Model
) -> TransformersSession:
    """Load, compile and probe a model, and make a session on it; errors as `OpenVINO.build`."""
    device = resolve_device(options.device)
    genai, fallback = find_genai(options, model)
    loaded, properties = load_model(model, device, options)
    exported: Any = loaded.model
    window = find_window(exported, options.max_model_len)
    probed = compile_and_probe(exported, device, window)
    rows = options.batch_size if isinstance(options.batch_size, int) else _BATCH_SIZE
    batches = FixedBatches(exported, rows if probed.pads_left else 1, MemoryError)
    generation: Generation = batches
    if genai is None:
        capabilities -= {Capability.CONTINUOUS_BATCHING}
    else:
        generation = GenaiBatching(
            genai,
            Path(exported.model_save_dir),
            device,
            properties,
            rows=rows,
            settings=make_scheduler_settings(options, exported, rows, window),
            others=batches,
            required=options.genai is True,
        )
    return TransformersSession(
        type(options).__name__,
        capabilities,
        replace(loaded, dtype=probed.execution["dtype"]),
        max_model_len=window,
        batch_size=rows,
        scorer=PrefixTreeScorer(
            probed.request,
            probed.forms,
            pass_tokens=options.pass_tokens or PASS_TOKENS,
            state_tokens=cache_size(exported, _STATE_TOKENS),
        ),
        generation=generation,
        execution={"fallback": fallback, **probed.execution},
    )
