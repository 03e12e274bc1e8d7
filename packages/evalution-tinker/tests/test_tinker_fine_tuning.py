"""The worked example of training on a Tinker-compatible server, on a real one: SkyRL on a CPU."""

from __future__ import annotations

import importlib.util
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from evalution_core.builtins import builtin_path

pytest.importorskip("skyrl", reason="skyrl is not installed")
pytest.importorskip("tinker", reason="tinker is not installed")
pytest.importorskip("jinja2", reason="evalution-runner[report] is not installed")

# tinker 0.24 leaves a connection open however it is closed.
pytestmark = [
    pytest.mark.wide,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first one starts the server
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in. <(function _SelectorTransport|socket\.socket)"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "fine_tune_tinker.py"


@pytest.fixture(scope="module")
def example() -> Any:
    found = importlib.util.spec_from_file_location("fine_tune_tinker", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"),
    reason="SkyRL 0.3.0 unpacks adapters by tarfile's filters, which Python has from 3.11.4 on",
)
def test_example_learns_and_its_report_shows_it(
    example: Any, skyrl_url: str, tmp_path: Path
) -> None:
    tiny = str(builtin_path("builtin:tiny", "safetensors"))
    scores = example.main(skyrl_url, tiny, tiny, tmp_path, steps=100, every=50)
    assert len(scores) == 3
    assert scores[0] == 0
    assert scores[-1] > 0.5
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = json.loads(page.partition('id="documents">')[2].partition("</script>")[0])
    assert [one["step"] for one in found["details"].values()] == [0, 50, 100]
    shown = [one["scores"][0]["value"] for one in found["runs"]["runs"]]
    assert shown == pytest.approx(scores)
