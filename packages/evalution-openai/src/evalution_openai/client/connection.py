"""Where a server's routes are."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import httpx

from evalution_core import ConfigurationError, EngineRuntimeError, EvalutionError, hide
from evalution_openai.client.error_mapping import quote, refusal, tls_failure
from evalution_openai.client.retry import (
    RETRIED_STATUSES,
    Attempts,
    Clock,
    Failure,
    Patience,
    Pressure,
    RateLimit,
    SystemClock,
    give_up,
    retry_after,
)

if TYPE_CHECKING:
    from evalution_openai.engine import OpenAICompatible


_VERSION = re.compile(r"/v\d+[a-z0-9]*(?=/|$)")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server's routes are: OpenAI's under `api`, others beside it under `root`."""

    api: str
    root: str

    @classmethod
    def of(cls, base_url: str) -> Address:
        """`base_url` with or without `/v1`; a version further in stands, too, and adds none.

        Raises:
            ConfigurationError: it is no http or https URL, has a query, or names a single route.
        """
        base = base_url.rstrip("/")
        if not _is_address(base) or base.endswith("/completions"):
            raise ConfigurationError(
                "base_url must be an http or https URL such as http://127.0.0.1:8000/v1, without a "
                f"query and without a route like /chat/completions, got {quote(base_url)!r}"
            )
        if found := _VERSION.search(base):
            return cls(base, base[: found.start()] if found.end() == len(base) else base)
        return cls(f"{base}/v1", base)


def _is_address(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host) and not {"?", "#"} & set(text)


_HIDDEN = b"***"
_LOOPBACK = ("all://localhost", "all://127.0.0.1", "all://[::1]")
_CONNECTIONS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
_TOO_MANY = 429
_LEAST_SECRET = 8
_LONGEST_ANSWER = 1 << 28
"""Bytes, unpacked: a small compressed answer may be endless."""


class Endpoint:
    """A server, asked from one event loop.

    An answer never shows the credentials: where the server repeats them, they are replaced. One of
    few letters is left, as it stands in other words ("EMPTY" is a usual key of open servers). A
    redirect is not followed: it would carry the prompt, and perhaps the key, to another host.
    """

    def __init__(
        self,
        address: Address,
        *,
        patience: Patience | None = None,
        headers: Mapping[str, str] | None = None,
        credentials: Sequence[str] = (),
        requests: RateLimit | None = None,
        tokens: RateLimit | None = None,
        clock: Clock | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        chance: random.Random | None = None,
    ):
        self.address = address
        self.clock = clock or SystemClock()
        self._patience = patience or Patience()
        self._headers = dict(headers or {})
        self._credentials = [text.encode() for text in credentials if len(text) >= _LEAST_SECRET]
        self._requests = requests or RateLimit(self.clock, None)
        self._tokens = tokens or RateLimit(self.clock, None)
        self._transport = transport
        self._chance = chance or random.Random()
        self._client: httpx.AsyncClient | None = None
        self.pressure: Pressure | None = None

    async def get(self, url: str, *, max_retries: int | None = None) -> Any:
        """The JSON that a GET answers; raises as `post`."""
        return await self._exchanged("GET", url, None, await self._begun(0, max_retries))

    async def post(
        self,
        url: str,
        body: Mapping[str, Any],
        *,
        tokens: int = 0,
        max_retries: int | None = None,
    ) -> Any:
        """The JSON that a POST answers; `tokens` is what it may cost of the tokens a minute.

        Raises:
            InvalidRequestError, UnsupportedRequestError: the server finds the request wrong.
            ConfigurationError: it doesn't accept the credentials.
            EngineRuntimeError: it couldn't be reached, or failed, in all tries.
        """
        attempts = await self._begun(tokens, max_retries)
        answer = await self._exchanged("POST", url, body, attempts)
        if tokens:
            self._tokens.give_back(tokens - _used(answer, tokens))
        return answer

    async def events(
        self, url: str, body: Mapping[str, Any], *, tokens: int = 0
    ) -> AsyncIterator[dict[str, Any]]:
        """The JSON objects of an event stream; tried again only until the first one has come.

        Raises as `post`; `EngineRuntimeError` also for a stream that breaks off.
        """
        attempts = await self._begun(tokens)
        used = tokens
        while True:
            come = False
            await self._allowed_again(attempts)
            try:
                async with asyncio.timeout(attempts.timeout_s):
                    async with self._opened("POST", url, body, attempts) as response:
                        async for event in self._parsed(response):
                            come = True
                            used = _used(event, used)
                            yield event
                self._note_success()
                self._tokens.give_back(tokens - used)
                return
            except (httpx.TransportError, TimeoutError, _TryAgain) as error:
                failure = self._failed(url, error)
                if come:
                    give_up(failure, "the stream broke off, and its beginning was handed on")
                await attempts.wait_after(failure)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _exchanged(
        self, method: str, url: str, body: Mapping[str, Any] | None, attempts: Attempts
    ) -> Any:
        while True:
            await self._allowed_again(attempts)
            try:
                async with (
                    asyncio.timeout(attempts.timeout_s),
                    self._opened(method, url, body, attempts) as response,
                ):
                    content = self._clean(await _read(response))
                answer = _json(content, url)
            except (httpx.TransportError, TimeoutError, _TryAgain) as error:
                await attempts.wait_after(self._failed(url, error))
            else:
                self._note_success()
                return answer

    async def _begun(self, tokens: int, max_retries: int | None = None) -> Attempts:
        await self._requests.take()
        await self._tokens.take(tokens)
        patience = self._patience
        if max_retries is not None:
            patience = replace(patience, max_retries=min(max_retries, patience.max_retries))
        return Attempts(patience, self.clock, self._chance, self.clock.now())

    async def _allowed_again(self, attempts: Attempts) -> None:
        """A try after the first is one more request a minute; its wait isn't part of its time."""
        if attempts.made:
            await self._requests.take()

    @asynccontextmanager
    async def _opened(
        self, method: str, url: str, body: Mapping[str, Any] | None, attempts: Attempts
    ) -> AsyncGenerator[httpx.Response]:
        """The response to one try, whose body is still to be read."""
        sent_at = self.clock.now()
        async with self._http().stream(method, url, json=body) as response:
            if response.is_success:
                yield response
                return
            if response.is_redirect:
                raise EngineRuntimeError(_redirect_message(url, response))
            content = self._clean(await _read(response))
            error = refusal(response.status_code, content, httpx.URL(url).path, body)
            if response.status_code not in RETRIED_STATUSES:
                raise error
            if response.status_code == _TOO_MANY and self.pressure is not None:
                self.pressure.refused(sent_at)
            raise _TryAgain(error, retry_after(response.headers, self.clock.today()))

    async def _parsed(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        """The events up to `[DONE]`, which some servers leave out once the choice is finished."""
        finished = False
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = self._clean(line[5:].strip().encode())
            if data == b"[DONE]":
                return
            event = _json(data, str(response.request.url))
            if event.get("error"):  # null in every event of some servers
                status = _status_of(event["error"])
                error = refusal(status, data, response.request.url.path)
                raise _TryAgain(error) if status in RETRIED_STATUSES else error
            finished = finished or any(c.get("finish_reason") for c in event.get("choices") or ())
            yield event
        if not finished:
            path = response.request.url.path
            raise _TryAgain(EngineRuntimeError(f"{path} ended its event stream before [DONE]"))

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                timeout=None,
                limits=_CONNECTIONS,
                transport=self._transport,
                # What runs on this machine is asked directly, whatever proxy the others need.
                mounts=dict.fromkeys(_LOOPBACK),
            )
        return self._client

    def _failed(self, url: str, error: Exception) -> Failure:
        if isinstance(error, _TryAgain):
            return Failure(error.error, error.wait_s, error.__cause__)  # pyright: ignore[reportArgumentType]
        if (unsafe := tls_failure(error, url)) is not None:
            raise unsafe from error
        what = quote(str(error)) or "no answer in time"
        path = httpx.URL(url).path
        return Failure(
            EngineRuntimeError(f"{path} failed: {type(error).__name__}: {what}"), cause=error
        )

    def _note_success(self) -> None:
        if self.pressure is not None:
            self.pressure.served()

    def _clean(self, content: bytes) -> bytes:
        for secret in self._credentials:
            content = content.replace(secret, _HIDDEN)
        return content


def is_unreachable(error: EvalutionError) -> bool:
    """Whether an exchange failed because nothing was there to answer."""
    return isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)


class _TryAgain(Exception):
    """An answer that another try may mend."""

    def __init__(self, error: EvalutionError, wait_s: float | None = None):
        super().__init__(str(error))
        self.error = error
        self.wait_s = wait_s


async def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        if len(content) > _LONGEST_ANSWER:
            path = response.request.url.path
            raise EngineRuntimeError(f"{path} answered more than {_LONGEST_ANSWER} bytes")
    return bytes(content)


def _json(content: bytes, url: str) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError as error:
        said = quote(content[:200].decode("utf-8", "replace"))
        broken = EngineRuntimeError(f"{httpx.URL(url).path} answered no valid JSON: {said!r}")
        raise _TryAgain(broken) from error
    if not isinstance(answer, dict):
        raise EngineRuntimeError(f"{httpx.URL(url).path} answered no JSON object")
    return cast("dict[str, Any]", answer)


def _used(answer: Mapping[str, Any], expected: int) -> int:
    usage: Any = answer.get("usage")
    if not isinstance(usage, Mapping):
        return expected
    total: Any = cast("Mapping[str, Any]", usage).get("total_tokens")
    return total if isinstance(total, int) else expected


def _status_of(error: Any) -> int:
    """The status that an error within a stream stands for; 500 where it tells none."""
    if not isinstance(error, Mapping):
        return 500
    entries = cast("Mapping[str, Any]", error)
    code: Any = entries.get("code")
    if isinstance(code, int):
        return code
    return 400 if entries.get("type") == "invalid_request_error" else 500


def _redirect_message(url: str, response: httpx.Response) -> str:
    target = httpx.URL(url).join(response.headers.get("location", ""))
    return (
        f"{httpx.URL(url).path} redirects to {target.scheme}://{target.netloc.decode()}, which is "
        "not followed, so that no key goes to another address; set base_url to the right one"
    )


_CREDENTIAL = re.compile(r"(?i)auth|cookie|cred|key|pass|secret|sig|token")
"""Names of headers whose values are taken out of answers, should a server repeat them."""


def open_endpoint(
    options: OpenAICompatible,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
) -> Endpoint:
    """The server of `options`, not asked yet.

    Raises:
        ConfigurationError: `base_url` is no URL, or `api_key_env` names a variable that isn't set.
    """
    clock = clock or SystemClock()
    key = _key(options)
    headers = dict(options.extra_headers)
    if key:
        headers.setdefault("Authorization", f"Bearer {key}")
    secrets = [value for name, value in headers.items() if _CREDENTIAL.search(name)]
    return Endpoint(
        Address.of(options.base_url),
        patience=Patience(options.timeout_s, options.deadline_s, options.max_retries),
        headers=headers,
        credentials=[*secrets, key or ""],
        requests=RateLimit(clock, options.requests_per_minute),
        tokens=RateLimit(clock, options.tokens_per_minute),
        clock=clock,
        transport=transport,
        chance=chance,
    )


def _key(options: OpenAICompatible) -> str | None:
    if options.api_key is not None or options.api_key_env is None:
        return options.api_key
    key = os.environ.get(options.api_key_env)
    if not key:
        raise ConfigurationError(
            f"api_key_env names the environment variable {options.api_key_env!r}, which isn't set; "
            "set it to the key, or leave api_key_env out for a server that needs none"
        )
    hide(key, is_secret=True)
    return key
