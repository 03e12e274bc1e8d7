"""The same ids from a folder with and without Transformers, or a notice that names the first text.

Families of tokenizers x what a configuration may say x both readings.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalution_core import Model
from evalution_enginekit import TokenizerFile, load_tokenizer
from evalution_enginekit.tokenizer_classes import OVERRULED_TYPES, REGISTERED_CLASSES

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("tokenizer_families", HERE / "tokenizer_families.py")
assert spec is not None
assert spec.loader is not None
families: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(families)

transformers: Any = pytest.importorskip(
    "transformers", reason="needs the environment torch of tools/envs"
)
pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("default")]


REFUSED = "tokens without a type"
"""A configuration that Transformers 5 refuses; the file is read without it then."""


UNKNOWN = {"bert", "llama-unigram"}
"""Families whose rules aren't known without Transformers."""
UNREADABLE = {"t5": ["no tokens"]}
"""Further configurations that Transformers refuses."""


@pytest.fixture(params=families.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def test_folder_gives_autotokenizers_ids_and_other_readings_are_named(
    family: str, tmp_path: Path
) -> None:
    texts = list(families.write_texts(120))
    differing: set[str] = set()
    for variation in families.VARIATIONS:
        folder = tmp_path / variation
        families.write_tokenizer(folder, family, variation)
        loaded = load_tokenizer(Model(str(folder)), folder)
        alone = TokenizerFile(folder / "tokenizer.json")
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
        except TypeError:
            assert loaded.source == "tokenizer.json"
            assert loaded.notice is not None
            assert "read without Transformers, which refuses it: " in loaded.notice
            differing.add(variation)
            continue
        assert loaded.source == f"transformers {transformers.__version__}"
        unequal: list[str] = []
        for text in texts:
            try:
                ids = theirs.encode(text, add_special_tokens=False)
                whole = theirs.encode(text, add_special_tokens=True)
            except Exception:  # noqa: BLE001 - the library's, for a lack of the unknown token
                continue
            assert loaded.encode(text) == ids, (variation, text)
            end = len(loaded.leading_ids) + len(ids)
            assert whole[:end] == [*loaded.leading_ids, *ids], (variation, text)
            if alone.encode(text) != ids or alone.leading_ids != loaded.leading_ids:
                unequal.append(text)
        if loaded.notice is not None:
            differing.add(variation)
            assert "an engine without Transformers reads it otherwise: " in loaded.notice
        assert loaded.notice is not None or not unequal, (variation, unequal[:3])
    known = set() if family in UNKNOWN else {REFUSED, *UNREADABLE.get(family, ())}
    assert differing == known or family in UNKNOWN, differing ^ known


def test_known_models_have_the_classes_that_transformers_registers() -> None:
    from transformers.models.auto import tokenization_auto as auto

    for model_type, name in REGISTERED_CLASSES.items():
        theirs = auto.TOKENIZER_MAPPING_NAMES[model_type]
        expected = "TokenizersBackend" if theirs == "MistralCommonBackend" else theirs
        assert name == expected, model_type
        overruled = model_type in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
        assert (model_type in OVERRULED_TYPES) == overruled, model_type


LOAD = """
import json, sys
from pathlib import Path
from evalution_core import Model
from evalution_enginekit import load_tokenizer

folder = Path(sys.argv[1])
texts = json.loads(sys.argv[2])
found = [
    load_tokenizer(Model(str(folder)), folder),
    load_tokenizer(Model("owner/name"), None, [2]),
    load_tokenizer(Model("builtin:tiny", tokenizer_path="owner/name"), folder),
    load_tokenizer(Model("builtin:tiny", tokenizer_path=str(folder / "tokenizer.json")), folder),
]
print(json.dumps([
    [
        [each.encode(text) for text in texts], each.leading_ids, sorted(each.eos_ids),
        each.chat_template.source, each.source, (each.notice or "").partition(" was read by ")[2],
    ]
    for each in found
]))
"""


@pytest.mark.parametrize("name", ["qwen2-generic", "llama-legacy", "llama-unigram"])
def test_folder_file_and_hub_id_give_the_same_ids(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    families.write_tokenizer(folder, name, "add_prefix_space")
    cache = tmp_path / "hub" / "models--owner--name"
    commit = "0" * 40
    shutil.copytree(folder, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    texts = list(families.write_texts(40))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), json.dumps(texts)],
        capture_output=True, text=True, check=True,
        env={"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "PATH": ""},
    )  # fmt: skip
    first, *others = json.loads(done.stdout.splitlines()[-1])
    assert all(other == first for other in others)
    assert first[2] == [2]
    assert bool(first[-1]) == (name == "llama-unigram"), "a notice where readings differ"
