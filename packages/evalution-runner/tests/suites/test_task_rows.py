"""The hand-made rows under data/rows, and every named suite run on them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import evalution
from evalution.suites import GenerationSuite, load_suite
from evalution.suites.discovery import find_built_in
from evalution.suites.translation_suite import TranslationScore
from evalution_enginekit.mock import Mock

ROWS = Path(__file__).parents[1] / "data" / "rows"
NAMED = [name for name in find_built_in() if name.islower()]
LARGEST = 220_000
SHARED = {"hendrycks_math500": "math500", "minerva_math500": "math500"} | {
    f"wmt{year}-{pair}": f"wmt/{rows}"
    for year, rows in (("14", "fr-en"), ("16", "de-en"), ("16", "ro-en"))
    for pair in (rows, "-".join(reversed(rows.split("-"))))
}
EXTRAS = {"minerva_math500": "math_verify", "ifeval": "langdetect"}
FAMILIES = ("gpqa", "truthfulqa", "bbh")
SUBSETS = {
    "mmlu": ["stem.abstract_algebra", "other.virology"],
    "mmlu_pro": ["law", "computer_science"],
    **{
        way: ["dyck_languages", "web_of_lies"]
        for way in ("bbh", "bbh_fewshot", "bbh_zeroshot", "bbh_cot_zeroshot")
    },
}


@pytest.fixture(scope="module")
def make_rows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_rows", ROWS / "make_rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rows_are_those_of_the_script(make_rows: ModuleType) -> None:
    made = {path: text.encode() for path, text in make_rows.files()}
    found = {path.relative_to(ROWS).as_posix(): path for path in ROWS.rglob("*.jsonl")}
    assert {path: file.read_bytes() for path, file in found.items()} == made
    assert sum(map(len, made.values())) <= LARGEST


def suite_of(name: str, **options: Any) -> Any:
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name], reason=f"needs {EXTRAS[name]}, as lm-eval of tools/envs")
    kind: Any = load_suite(name)
    family = next((family for family in FAMILIES if name.startswith(family)), None)
    folder = ROWS / (
        family or SHARED.get(name, name.partition("_cot")[0].removesuffix("_instruct"))
    )
    if name in SUBSETS:
        options |= {"subsets": SUBSETS[name]}
    if name.partition("_")[0] in ("humaneval", "mbpp"):
        options |= {"execute": "sandbox"}
    return kind(data=folder, **options)


@pytest.mark.parametrize("name", NAMED)
def test_a_suite_has_at_least_twenty_rows_to_be_compared_on(name: str) -> None:
    assert suite_of(name).check_samples() >= 20


def test_a_corpus_of_mostly_empty_answers_is_scored() -> None:
    accumulator = suite_of("wmt16-de-en").make_accumulator()
    rows = [("", "a tree"), ("", "the house"), ("x y", "x y"), ("a b", "")]
    shown = [
        accumulator.record(index, TranslationScore({}, "", translation=text, reference=right))
        for index, (text, right) in enumerate(rows)
    ]
    assert shown[2] == {"bleu": pytest.approx(100.0), "ter": 0.0, "chrf": 100.0}
    chrf = accumulator.results()["chrf"]
    assert chrf.value is not None
    assert chrf.interval is not None
    assert chrf.row_range is None
    assert 0.0 <= chrf.interval[0] < chrf.value < chrf.interval[1] <= 100.0


@pytest.mark.parametrize("name", NAMED)
def test_a_suite_runs_on_its_rows(name: str) -> None:
    options = {"max_new_tokens": 8} if issubclass(load_suite(name), GenerationSuite) else {}
    suite = suite_of(name, max_rows=3, **options)
    result = evalution.run(engine=Mock(max_model_len=4096), model="m", tests=[suite])[name]
    assert (result.n, result.failed) == (3, 0)
    assert list(result.metrics) == list(suite.make_accumulator().results())
