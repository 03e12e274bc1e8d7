"""A route that takes JSON: the body within its limits, the answer while the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from evalution_openai.server.bodies import Body
from evalution_openai.server.connections import Peer, peer_of
from evalution_openai.server.errors import ClientGoneError, Problem
from evalution_openai.server.serving import HeldBody, Served
from evalution_openai.server.streaming import EventStream, send_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


B = TypeVar("B", bound=Body)

_CLOSE = {"Connection": "close"}
"""After a body that wasn't read to its end, the connection holds the rest of it."""


class JsonEndpoint(Generic[B]):
    """An ASGI application for one route.

    Args:
        served: gives the model, or raises a `Problem` while there is none.
        body: the type of the body.
        answer: what is done with it.
    """

    def __init__(
        self,
        served: Callable[[], Served],
        body: type[B],
        answer: Callable[[Served, B], Awaitable[Mapping[str, Any] | EventStream]],
    ):
        self._served = served
        self._body = body
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served, peer = self._served(), peer_of(scope)
        held = HeldBody(served.bodies)
        try:
            text = await _read(scope, receive, served, held)
            if served.settings.log_prompts:
                scope["evalution.body"] = text
            body = _parsed(self._body, text)
            del text  # it may wait long, and what was parsed is enough
            served.check_name(body.model)
            served.enter()
            try:
                await _while_connected(self._reply(served, body, send), receive, peer)
            finally:
                served.leave()
        finally:
            held.let_go()

    async def _reply(self, served: Served, body: B, send: Send) -> None:
        answer = await self._answer(served, body)
        if isinstance(answer, EventStream):
            await answer.send(send)
        else:
            await send_json(send, 200, answer)


async def _read(scope: Scope, receive: Receive, served: Served, held: HeldBody) -> bytes:
    """The body; `held` is told how much of it is there.

    Raises:
        Problem: it is too long, too slow in coming, or there is no room for it.
        ClientGoneError: it won't come.
    """
    limit, patience = served.settings.max_body_bytes, served.settings.body_timeout_s
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            if int(value) > limit:
                raise _too_large(limit)
            served.bodies.check_room(int(value))
    parts: list[bytes] = []
    size = 0
    peer = peer_of(scope)
    is_here = peer is not None and peer.has_sent_all
    try:
        async with asyncio.timeout(None if is_here else patience):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                held.add(len(part))
                parts.append(part)
                more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(
            408,
            f"the request's body took longer than {patience:g} s to come",
            code="request_timeout",
            headers=_CLOSE,
        ) from None
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    return Problem(
        413,
        f"the request's body is longer than the {limit} bytes that this server takes",
        code="body_too_large",
        headers=_CLOSE,
    )


def _parsed(kind: type[B], text: bytes) -> B:
    """Raises a `Problem` that names the first field that is wrong, and all that it may be."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        field = str(found[0]["loc"][0]) if found[0]["loc"] else None
        # A field of several types has an error for each of them.
        wrong = [one["msg"] for one in found if one["loc"][:1] == found[0]["loc"][:1]]
        message = "; or ".join(dict.fromkeys(wrong))
        raise Problem(400, f"{field}: {message}" if field else message, param=field) from None


async def _while_connected(
    work: Coroutine[Any, Any, None], receive: Receive, peer: Peer | None
) -> None:
    """Do `work`, or cancel it when the client goes away.

    Raises:
        ClientGoneError: the client went away first.
    """
    task = asyncio.current_task()
    assert task is not None
    is_gone = peer is not None and peer.is_gone
    if is_gone:
        work.close()
        raise ClientGoneError

    def leave() -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    stop = _watch(receive, leave) if peer is None else peer.call_when_gone(leave)
    try:
        await work
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        stop()


def _watch(receive: Receive, leave: Callable[[], None]) -> Callable[[], None]:
    """`Peer.call_when_gone` where ASGI's messages are all that tells."""

    def ended(_: asyncio.Future[None]) -> None:
        if not watcher.cancelled():
            leave()

    def stop() -> None:
        watcher.remove_done_callback(ended)
        watcher.cancel()

    watcher = asyncio.ensure_future(_disconnected(receive))
    watcher.add_done_callback(ended)
    return stop


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
