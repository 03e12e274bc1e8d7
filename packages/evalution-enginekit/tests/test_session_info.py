"""A session on whole requests has a tokenizer and a window where it was given them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from evalution_core import Capability, SessionInfo
from evalution_enginekit import (
    ByteTokenizer,
    CompletionChunk,
    RequestLoop,
    RequestPrompt,
    RequestSession,
)


class Silent(RequestSession):
    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        yield CompletionChunk("", finish="length")


@pytest.mark.parametrize(
    "known",
    [{"tokenizer": ByteTokenizer()}, {"max_model_len": 9}, {}],
    ids=["codec", "window", "-"],
)
def test_session_has_the_tokenizer_and_the_window_it_was_given(known: dict[str, Any]) -> None:
    options = {"engine": "Silent", "capabilities": frozenset({Capability.GENERATE})}
    with Silent(**options, loop=RequestLoop("a", 3), encodes=False, **known) as session:
        assert session.tokenizer is known.get("tokenizer")
        expected = SessionInfo(options["capabilities"], known.get("max_model_len"), 3)
        assert session.info == expected
