"""A route that takes JSON: reads the body within its limits, and answers while the client waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from evalution_core.plugins import did_you_mean
from evalution_enginekit.fair_queue import count_text
from evalution_openai.server.bodies import Body, StreamOptions
from evalution_openai.server.connections import Client, get_client
from evalution_openai.server.errors import ApiError
from evalution_openai.server.serving import LONG_TEXT, ServedModel
from evalution_openai.server.streaming import EventStream, encode_in_steps, send_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


B = TypeVar("B", bound=Body)

_JSON = "application/json"
_LONGEST_NAME = 100
"""Characters of an unknown field's name that are compared and shown."""
_MOST_PARTS = 200_000
"""Objects, lists and strings of a body: each may become an object, or an error, of a kilobyte."""
_MOST_VALUES = 3_000_000
"""Values of a body, numbers included: 16 MiB hold fewer token ids of five digits."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string of JSON, in linear time; one that doesn't end is the whole rest."""
_CLOSE = {"Connection": "close"}
"""For a body that wasn't read to its end: the rest of it is still to come on the connection."""


class JsonRoute(Generic[B]):
    """An ASGI application for one route.

    Args:
        served: returns the model, or raises an `ApiError` while there is none.
        body: the type of the body.
        answer: makes the answer to a body; one in bytes is encoded.
    """

    def __init__(
        self,
        served: Callable[[], ServedModel],
        body: type[B],
        answer: Callable[[ServedModel, B], Awaitable[Mapping[str, Any] | bytes | EventStream]],
    ):
        self._served = served
        self._body = body
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served, client = self._served(), get_client(scope)
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            served.bodies.take(size)
            held += size

        _check_media(Headers(scope=scope))
        try:
            text = await _read_body(scope, receive, served, hold)
            if served.settings.log_prompts:
                scope["evalution.body"] = text
            body = _parse_body(self._body, text)
            del text  # the request may wait long, and only needs the parsed body
            served.check_name(body.model)
            served.enter()
            try:
                await _run_while_connected(self._reply(served, body, send), receive, client)
            finally:
                served.leave()
        finally:
            served.bodies.total -= held
            if held > LONG_TEXT:
                served.threads.trim_soon()

    async def _reply(self, served: ServedModel, body: B, send: Send) -> None:
        answer = await self._answer(served, body)
        if isinstance(answer, EventStream):
            await answer.send(send)
            return
        if not isinstance(answer, bytes):
            size = count_text(answer, LONG_TEXT)
            if size > LONG_TEXT:
                answer = await served.threads.run(size, encode_in_steps, answer)
        await send_json(send, 200, answer)


def _check_media(headers: Headers) -> None:
    """Raise an `ApiError` (415) for a body that isn't plain JSON; without a type it counts as that.

    A web page can send other types to another origin without asking.
    """
    kind = headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    encoding = headers.get("content-encoding", "identity").lower()
    if kind != _JSON or encoding != "identity":
        shown = f"{kind} ({encoding})" if encoding != "identity" else kind
        raise ApiError(
            415,
            f"a body of type {shown} isn't read here; send JSON with Content-Type: {_JSON}",
            code="unsupported_media_type",
            headers=_CLOSE,
        )


async def _read_body(
    scope: Scope, receive: Receive, served: ServedModel, hold: Callable[[int], None]
) -> bytes:
    """Read the body; `hold` counts its bytes, and raises if there is no room for them.

    Raises:
        ApiError: it is too long or too slow, or there is no room for it.
        ClientDisconnect: the client went away before sending all of it.
    """
    limit, timeout_s = served.settings.max_body_bytes, served.settings.body_timeout_s
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            if int(value) > limit:
                raise _make_too_large(limit)
            served.bodies.check_room(int(value))
    parts: list[bytes] = []
    size = 0
    client = get_client(scope)
    is_here = client is not None and client.has_sent_all
    try:
        async with nullcontext() if is_here else asyncio.timeout(timeout_s):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise _make_too_large(limit)
                hold(len(part))
                parts.append(part)
                more = message.get("more_body", False)
    except TimeoutError:
        raise ApiError(
            408,
            f"the request's body took longer than {timeout_s:g} s to arrive",
            code="request_timeout",
            headers=_CLOSE,
        ) from None
    return b"".join(parts)


def _make_too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"the request's body is longer than the {limit} bytes that this server takes",
        code="body_too_large",
        headers=_CLOSE,
    )


def _parse_body(kind: type[B], text: bytes) -> B:
    """Parse a body; the `ApiError` names the first invalid field and everything it may be."""
    _check_parts(text)
    try:
        return kind.parse(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        for one in found:
            if one["type"] == "extra_forbidden":
                raise _make_unknown(kind, ".".join(map(str, one["loc"]))) from None
        field = str(found[0]["loc"][0]) if found[0]["loc"] else None
        # A field of several types has an error for each of them.
        wrong = [one["msg"] for one in found if one["loc"][:1] == found[0]["loc"][:1]]
        message = "; or ".join(dict.fromkeys(wrong))
        raise ApiError(400, f"{field}: {message}" if field else message, param=field) from None


def _check_parts(text: bytes) -> None:
    """Raise an `ApiError` for a body of which too much would be made."""
    parts, values = _count_parts(text)
    if parts > _MOST_PARTS or values > _MOST_VALUES:
        rest, strings = _STRING.subn(b"", text, _MOST_PARTS + 1)
        parts, values = _count_parts(rest)
        parts += strings
    for count, most, kind in (
        (parts, _MOST_PARTS, "objects, lists and strings, names of fields included,"),
        (values, _MOST_VALUES, "values"),
    ):
        if count > most:
            raise ApiError(
                400,
                f"the request's body has more than the {most} {kind} that this server takes; send "
                "it in parts",
                code="body_too_complex",
            )


def _count_parts(text: bytes) -> tuple[int, int]:
    """Count objects, lists and strings, and all values, as if there were nothing within strings."""
    return text.count(b"{") + text.count(b"[") + text.count(b'"') // 2, text.count(b",") + 1


def _make_unknown(kind: type[Body], field: str) -> ApiError:
    field = field[:_LONGEST_NAME]
    known = [*kind.model_fields, *StreamOptions.model_fields]
    near = did_you_mean(field.rpartition(".")[2], known)
    return ApiError(
        400,
        f"this route has no field {field!r}{near} (fields: {', '.join(kind.model_fields)})",
        code="unknown_parameter",
        param=field,
    )


async def _run_while_connected(
    work: Coroutine[Any, Any, None], receive: Receive, client: Client | None
) -> None:
    """Run `work`, and cancel it if the client disconnects.

    Raises:
        ClientDisconnect: the client disconnected first.
    """
    task = asyncio.current_task()
    assert task is not None
    is_gone = client is not None and client.is_gone
    if is_gone:
        work.close()
        raise ClientDisconnect

    def cancel() -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    stop = _watch_messages(receive, cancel) if client is None else client.call_when_gone(cancel)
    try:
        await work
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        stop()


def _watch_messages(receive: Receive, cancel: Callable[[], None]) -> Callable[[], object]:
    """Do what `Client.call_when_gone` does, with ASGI's messages alone."""

    async def wait() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        cancel()

    return asyncio.ensure_future(wait()).cancel
