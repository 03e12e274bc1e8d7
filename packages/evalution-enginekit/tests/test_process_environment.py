"""What a runtime sets while it starts doesn't stay."""

from __future__ import annotations

import os

import pytest

from evalution_enginekit.runtime import process_environment


def test_process_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALUTION_KEPT", "mine")
    before = dict(os.environ)
    with process_environment({"EVALUTION_NEW": "1"}, defaults={"EVALUTION_KEPT": "theirs"}):
        assert os.environ["EVALUTION_KEPT"] == "mine"
        assert os.environ["EVALUTION_NEW"] == "1"
        os.environ["EVALUTION_KEPT"] = "changed"
        os.environ["EVALUTION_STRAY"] = "1"
        del os.environ["PATH"]
    assert dict(os.environ) == before
