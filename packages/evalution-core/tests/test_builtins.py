"""Models and rows inside installed packages, found by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evalution_core import ConfigurationError
from evalution_core.builtins import builtin_path

MODULE = """
from pathlib import Path

GARDEN = {"safetensors": Path("/garden"), "gguf": Path("/garden.gguf"), "rows/sums": Path("/s")}
"""


@pytest.fixture
def garden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One installed package that offers a builtin, and no other."""
    (tmp_path / "evalution_garden_files.py").write_text(MODULE, encoding="utf-8")
    folder = tmp_path / "evalution_garden-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: evalution-garden\nVersion: 1.0\n", encoding="utf-8"
    )
    (folder / "entry_points.txt").write_text(
        "[evalution.builtins]\ngarden = evalution_garden_files:GARDEN\n", encoding="utf-8"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "evalution_garden_files", raising=False)


@pytest.mark.usefixtures("garden")
@pytest.mark.parametrize("name", ["builtin:garden", "garden"])
def test_a_file_is_found_by_name_and_kind(name: str) -> None:
    assert builtin_path(name, "gguf") == Path("/garden.gguf")


@pytest.mark.usefixtures("garden")
def test_an_unknown_name_lists_what_there_is_and_where_tiny_comes_from() -> None:
    with pytest.raises(ConfigurationError) as caught:
        builtin_path("builtin:tiny", "gguf")
    assert str(caught.value) == (
        "no builtin 'tiny' is installed; pip install evalution-reference (installed: garden)"
    )


@pytest.mark.usefixtures("garden")
def test_a_module_is_no_builtin_and_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with pytest.raises(ConfigurationError, match=r"no builtin 'this:d' is installed"):
        builtin_path("builtin:this:d", "rows/d")
    assert "this" not in sys.modules


def test_without_any_installed_the_message_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(
        ConfigurationError, match=r"no builtin 'x' is installed \(installed: none\)"
    ):
        builtin_path("x", "gguf")


@pytest.mark.usefixtures("garden")
def test_other_package_never_replaces_a_builtin_in_silence(tmp_path: Path) -> None:
    folder = tmp_path / "zebra-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: zebra\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[evalution.builtins]\ngarden = zebra_files:GARDEN\n")
    with pytest.raises(ConfigurationError, match="name one of: evalution-garden/garden, zebra/ga"):
        builtin_path("builtin:garden", "gguf")
    assert builtin_path("builtin:evalution-garden/garden", "gguf") == Path("/garden.gguf")


@pytest.mark.usefixtures("garden")
def test_an_unknown_kind_names_the_nearest_and_lists_all() -> None:
    with pytest.raises(ConfigurationError) as caught:
        builtin_path("builtin:garden", "safetensor")
    assert str(caught.value) == (
        "builtin:garden has no 'safetensor'; did you mean 'safetensors'? "
        "(it has: gguf, rows/sums, safetensors)"
    )
    with pytest.raises(ConfigurationError) as caught:
        builtin_path("builtin:garden", "onnx")
    assert str(caught.value) == (
        "builtin:garden has no 'onnx' (it has: gguf, rows/sums, safetensors)"
    )
