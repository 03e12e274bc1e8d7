"""Copies of `builtin:tiny` that engines must refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from evalution_conformance.checks.checkpoint import list_incomplete_models
from evalution_conformance.subject import Subject
from evalution_core import Model
from evalution_core.builtins import builtin_path
from mutants.toy import INCOMPLETE, Toy

TINY = "builtin:tiny"


def test_copies_lack_one_weight_and_keep_the_others() -> None:
    source = builtin_path(TINY, "safetensors")
    with list_incomplete_models(Subject(Toy(), Model(path=TINY))) as models:
        folder, gguf = (Path(model.path or "") for model in models)
        whole, copy = (load_file(path / "model.safetensors") for path in (source, folder))
        assert whole.keys() - copy.keys() == {"model.layers.0.mlp.down_proj.weight"}
        assert all(np.array_equal(copy[name], whole[name]) for name in copy)
        known, found = ((path / gguf.name).read_bytes() for path in (source, folder))
        changed_bits = int.from_bytes(known) ^ int.from_bytes(found)
        assert 0 < changed_bits.bit_count() <= 8
        for name in ("config.json", "tokenizer.json"):
            assert (folder / name).read_bytes() == (source / name).read_bytes()


def test_declared_model_takes_the_place_of_the_copies() -> None:
    declared = Model(path=INCOMPLETE)
    with list_incomplete_models(Subject(Toy(), Model(path=TINY), incomplete=declared)) as models:
        assert models == [declared]
