"""A model's path is a folder, a builtin or a Hub id, and never a guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalution_core import ConfigurationError
from evalution_enginekit.model_source import choose_window, model_folder


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_folder(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert model_folder("~/model") == tmp_path / "model"


def test_a_builtin_is_the_folder_of_its_checkpoint() -> None:
    folder = model_folder("builtin:tiny")
    assert folder is not None
    assert (folder / "config.json").is_file()


@pytest.mark.parametrize("name", ["gpt2", "owner/name"])
def test_hub_id_has_no_folder(name: str) -> None:
    assert model_folder(name) is None


@pytest.mark.parametrize("path", ["./model", "~/no/such", "/no/such", "a/b/c"])
def test_missing_local_folder_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        model_folder(path, "a folder with model.xml")
    assert str(raised.value) == (
        f"model folder {path!r} does not exist; give a folder with model.xml"
    )


@pytest.mark.parametrize(
    ("asked", "own", "window"), [(None, 512, 512), (2, 512, 2), (512, 512, 512), (9, None, 9)]
)
def test_a_window_is_the_option_or_the_models_own(
    asked: int | None, own: int | None, window: int
) -> None:
    assert choose_window(asked, own) == window


def test_a_model_without_a_limit_gets_the_window_for_such_models() -> None:
    assert choose_window(None, None, unlimited=2048) == 2048
    with pytest.raises(ConfigurationError, match="states no longest sequence; set context_length"):
        choose_window(None, None, option="context_length")


@pytest.mark.parametrize(
    ("asked", "own", "message"),
    [
        (1, 512, "max_model_len=1 must be between 2 and the model's own 512"),
        (513, 512, "max_model_len=513 must be between 2 and the model's own 512"),
        (1, None, "max_model_len=1 must be between 2 and no limit of the model's"),
    ],
)
def test_a_window_beyond_the_models_own_is_refused(
    asked: int, own: int | None, message: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        choose_window(asked, own)
    assert str(raised.value) == message
