"""The copies of `builtin:tiny` that engines must refuse lack one weight, and nothing else."""

from __future__ import annotations

from pathlib import Path

from evalution_conformance.checks.checkpoint import list_incomplete_models
from evalution_conformance.subject import Subject
from evalution_core import Model
from evalution_core.builtins import builtin_path
from mutants.toy import INCOMPLETE, Toy

TINY = "builtin:tiny"


def test_copies_differ_from_the_model_in_the_name_of_one_weight() -> None:
    source = builtin_path(TINY, "safetensors")
    with list_incomplete_models(Subject(Toy(), Model(path=TINY))) as models:
        folder, gguf = (Path(model.path or "") for model in models)
        for copy in folder.iterdir():
            known, found = (source / copy.name).read_bytes(), copy.read_bytes()
            assert len(found) == len(known)
            changed_bits = int.from_bytes(known) ^ int.from_bytes(found)
            is_changed = copy.suffix in (".safetensors", ".gguf")
            assert is_changed == (0 < changed_bits.bit_count() <= 8), copy.name
        assert {"config.json", "tokenizer.json", "model.safetensors"} <= {
            copy.name for copy in folder.iterdir()
        }
        assert gguf.parent == folder


def test_declared_model_takes_the_place_of_the_copies() -> None:
    declared = Model(path=INCOMPLETE)
    with list_incomplete_models(Subject(Toy(), Model(path=TINY), incomplete=declared)) as models:
        assert models == [declared]
