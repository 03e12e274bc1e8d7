from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from evalution.fidelity.result import Estimate, FidelityResult
from evalution.fidelity.store import FIDELITY_FILE, make_badge, read_fidelity, write_fidelity
from evalution_core import ConfigurationError

HOSTILE = "</text><script>alert(1)</script>\"'&]]>\x00\ud800\u202e https://me:hunter2@host"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("top", [None, 20])
def test_result_is_read_as_it_was_written(make_fidelity: Any, tmp_path: Path, top: int) -> None:
    result: FidelityResult = make_fidelity(top=top, kl=Estimate(math.inf, None, None))
    folder = FIDELITY_FILE.make_folder(tmp_path / "new" / "folder")
    file = write_fidelity(result, folder)

    assert file == folder / "fidelity.json"
    assert read_fidelity(folder) == read_fidelity(file) == result
    assert sorted(path.name for path in folder.iterdir()) == ["fidelity.json", "fidelity.svg"]


def test_file_that_is_no_measurement_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no .*; `evalution fidelity REFERENCE"):
        read_fidelity(tmp_path)
    (tmp_path / "fidelity.json").write_text(json.dumps({"schema_version": 1, "reference": 3}))
    with pytest.raises(ConfigurationError, match=r"fidelity\.json is damaged: reference: "):
        read_fidelity(tmp_path)


def test_badge_says_what_was_measured_and_how(make_fidelity: Any) -> None:
    first, second = read_badge(make_badge(make_fidelity()))
    assert first == "KL 0.0124 (0.0093 to 0.0155) nats · against tiny on Reference (float64)"
    assert second == (
        "tiny q8_0 on LlamaCpp (Q8_0) · choices, prose · window 256 · whole vocabulary"
    )


def test_badge_of_a_lower_bound_says_so(make_fidelity: Any) -> None:
    first, second = read_badge(make_badge(make_fidelity(top=20)))
    assert first.startswith("KL ≥ 0.0124 (")
    assert second.endswith("top 20, 93.12 % of the mass")


def test_name_can_not_bring_markup_into_the_badge(make_fidelity: Any) -> None:
    badge = make_badge(make_fidelity(label=HOSTILE, names=[HOSTILE] * 9))
    _, second = read_badge(badge)  # it is well-formed

    assert len({element.tag for element in ElementTree.fromstring(badge).iter()}) == 6
    assert "script>alert" in second
    assert "hunter2" not in badge
    assert len(second) < 200
    assert not {"\x00", "\ud800", "\u202e"} & set(badge)


def read_badge(badge: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(badge).iter(f"{SVG}text")]
