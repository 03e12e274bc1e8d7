from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalution.fidelity.candidates import group_candidates, make_candidate_row
from evalution.fidelity.result import FidelityResult
from evalution.fidelity.sides import count_weight_bytes
from evalution.fidelity.store import make_badge, write_fidelity
from evalution_core import Model


@pytest.fixture
def folders(folder: Path, make_fidelity: Any) -> Path:
    q8 = make_fidelity(0.01, label="q8")
    other = replace(q8.reference, engine={**q8.reference.engine, "identity": {"weights": "b"}})
    for name, result in {
        "q4": make_fidelity(0.03, label="q4"),
        "q8": with_texts(q8, "a"),
        "shots": with_texts(q8, "b"),
        "weights": replace(q8, reference=other),
        "narrow": replace(make_fidelity(0.02), window=64),
    }.items():
        (folder / name).mkdir()
        write_fidelity(result, folder / name)
    (folder / "run").mkdir()
    (folder / "run" / "results.json").touch()
    return folder


def with_texts(result: FidelityResult, digest: str) -> FidelityResult:
    return replace(result, suites=[replace(suite, texts=digest) for suite in result.suites])


def test_measurements_of_one_reference_are_compared(folders: Path, command_line: Any) -> None:
    done = command_line("compare", "q4", "q8")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]

    assert done.returncode == 0
    assert "candidate mean KL weights less control p99 same top flips mass" in lines[1]
    assert [line.split()[0] for line in lines if " on LlamaCpp" in line] == ["q8", "q4"]
    found = json.loads(command_line("compare", "q4", "q8", "--json").stdout)
    assert [result["candidate"]["model"]["label"] for result in found] == ["q8", "q4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["q4", "narrow"], "can't be compared: their reference, texts, window or mode differ"),
        (["q8", "shots"], "can't be compared: their reference, texts, window or mode differ"),
        (["q8", "weights"], "can't be compared: their reference, texts, window or mode differ"),
        (["q4", "q8", "--flipped", "3"], "--flipped is for runs"),
        (["q4", "nowhere"], "there is no "),
        (["run", "q4"], "q4 holds a fidelity measurement and run a run; compare two of one kind"),
    ],
)
def test_measurements_that_can_not_be_compared_are_reported(
    folders: Path, command_line: Any, assert_says: Any, arguments: list[str], message: str
) -> None:
    assert_says(command_line("compare", *arguments), 2, message)


def test_result_without_a_digest_brings_no_other_texts_together(make_fidelity: Any) -> None:
    old = make_fidelity()
    groups = group_candidates([old, with_texts(old, "a"), with_texts(old, "b")])
    texts = [[result.suites[0].texts for result in group] for group in groups]
    assert texts == [[None, "a"], ["b"]]


def test_candidate_that_excludes_tokens_is_last_and_has_no_finite_mean(make_fidelity: Any) -> None:
    excluding, other = make_fidelity(0.001, infinite=3), make_fidelity(0.002)
    first, last = group_candidates([excluding, other])[0]
    assert (first, last) == (other, excluding)
    assert make_candidate_row(last).kl == "∞ (0.0010 elsewhere)"
    assert "KL ∞ (0.0010 elsewhere) nats" in make_badge(last)


def test_weights_are_counted_in_one_format_and_with_all_shards(tmp_path: Path) -> None:
    for name, size in {
        "model.safetensors": 10,
        "pytorch_model.bin": 11,
        "optimizer.pt": 100,
        "a-00001-of-00003.gguf": 5,
        "a-00002-of-00003.gguf": 6,
        "b.gguf": 50,
    }.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert count_weight_bytes(Model(str(tmp_path))) == 10
    assert count_weight_bytes(Model(str(tmp_path / "a-00001-of-00003.gguf"))) == 11
    (tmp_path / "model.safetensors").unlink()
    for shard in tmp_path.glob("*.gguf"):
        shard.unlink()
    assert count_weight_bytes(Model(str(tmp_path))) == 11
    (tmp_path / "pytorch_model.bin").unlink()
    assert count_weight_bytes(Model(str(tmp_path))) is None
