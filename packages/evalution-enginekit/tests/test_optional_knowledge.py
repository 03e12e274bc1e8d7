"""A session on whole requests has a tokenizer and a window where it was given them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from evalution_core import Capability, HasMaxModelLen, HasTokenizer
from evalution_enginekit import (
    ByteTokenizer,
    CompletionPiece,
    RequestLoop,
    RequestPrompt,
    RequestSession,
)


class Silent(RequestSession):
    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionPiece]:
        yield CompletionPiece("", finish="length")


@pytest.mark.parametrize(
    ("known", "kind"),
    [({"tokenizer": ByteTokenizer()}, HasTokenizer), ({"max_model_len": 9}, HasMaxModelLen)],
)
def test_what_is_known_is_an_attribute_and_what_is_not_is_not_promised(
    known: dict[str, Any], kind: type
) -> None:
    options = {"engine": "Silent", "capabilities": frozenset({Capability.GENERATE})}
    ((name, value),) = known.items()
    with Silent(**options, loop=RequestLoop("a"), encodes=False, **known) as session:
        assert isinstance(session, kind)
        assert getattr(session, name) == value
    with Silent(**options, loop=RequestLoop("b"), encodes=False) as session:
        assert not isinstance(session, kind)
    promised = {key for base in Silent.__mro__ for key in vars(base).get("__annotations__", {})}
    assert name not in promised
