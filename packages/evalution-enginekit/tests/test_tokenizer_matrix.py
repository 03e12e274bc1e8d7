"""The same ids from a folder with and without Transformers, or a notice that names the first text.

Families of tokenizers x what a configuration may say x both readings.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from evalution_core import Model
from evalution_enginekit import TokenizerFile, load_tokenizer

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
