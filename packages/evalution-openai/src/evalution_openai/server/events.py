"""Server-sent events: an answer in chunks."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from evalution_core import EvalutionError
from evalution_openai.server.gone import ClientGoneError
from evalution_openai.server.json_text import json_bytes
from evalution_openai.server.problems import Problem, problem_of, unexpected
from evalution_openai.server.sending import send_part

if TYPE_CHECKING:
    from starlette.types import Send

_log = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Chunks as they come, then `[DONE]`.

    What fails before the first chunk fails the request; later, the error is the last event.
    """

    def __init__(self, chunks: AsyncGenerator[dict[str, Any]]):
        self._chunks = chunks

    async def send(self, send: Send) -> None:
        """Send it all.

        Raises:
            Problem, EvalutionError: it failed before anything was sent.
            ClientGoneError: the client doesn't read on.
        """
        async with aclosing(self._chunks) as chunks:
            first = await anext(chunks, None)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            end = b"data: [DONE]\n\n"
            try:
                if first is not None:
                    await _event(send, first)
                async for chunk in chunks:
                    await _event(send, chunk)
            except ClientGoneError:
                raise
            except (Problem, EvalutionError) as error:
                problem = problem_of(error) if isinstance(error, EvalutionError) else error
                end = b"data: " + json_bytes(problem.answer) + b"\n\n"
            except Exception:  # noqa: BLE001 - whatever it is, the client learns of it
                _log.exception("a stream failed")
                end = b"data: " + json_bytes(unexpected().answer) + b"\n\n"
            await send_part(send, end, more=False)


async def _event(send: Send, chunk: dict[str, Any]) -> None:
    await send_part(send, b"data: " + json_bytes(chunk) + b"\n\n")
