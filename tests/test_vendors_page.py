"""The reference for vendors has every capability, and every field of the kit's types."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from evalution_core import Capability
from evalution_enginekit import (
    CompletionChunk,
    RequestPrompt,
    TokenEvent,
    TokenPrompt,
    TokenScore,
    TokenSession,
    TokenSpan,
)

PAGE = (Path(__file__).parents[1] / "docs" / "vendors.md").read_text(encoding="utf-8")
TYPES = [CompletionChunk, RequestPrompt, TokenEvent, TokenPrompt, TokenScore, TokenSpan]


def test_capabilities_are_those_of_core() -> None:
    listed = re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)
    assert listed == [capability.name for capability in Capability]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_fields_are_those_of_the_kit(kind: Any) -> None:
    rows = re.search(rf"^\| `{kind.__name__}` \|.*\n(?:\| \|.*\n)*", PAGE, re.MULTILINE)
    assert rows
    listed = [name for row in rows[0].splitlines() for name in read_names(row.split("|")[2])]
    assert sorted(listed) == sorted(field.name for field in fields(kind))


def test_arguments_are_those_of_the_session() -> None:
    section = PAGE.partition("`TokenSession` is built with:")[2].partition("## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in read_names(row.split("|")[1])]
    assert listed == [name for name in inspect.signature(TokenSession).parameters if name != "self"]


def read_names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)
