"""Requests to one server: address, credentials, time limits, retries, event streams."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, cast

import httpx

from evalution_core import ConfigurationError, EngineRuntimeError, EvalutionError
from evalution_core.options import read_key
from evalution_core.redaction import find_secrets, redact_text
from evalution_openai.address import Address
from evalution_openai.client.responses import (
    describe_text,
    find_tls_error,
    make_error,
    quote,
    read_choice,
    to_list,
    to_mapping,
)
from evalution_openai.client.retry import (
    RETRIED_STATUSES,
    AdaptiveConcurrency,
    Clock,
    RateLimit,
    RetryableError,
    RetryState,
    parse_retry_after,
)
from evalution_openai.options import OpenAIOptions

_log = logging.getLogger(__name__)
_HIDDEN = b"***"
_WORD = re.compile(r"[A-Za-z_-]{,19}")
"""A placeholder for a key, such as `anything`, that an answer may have of its own."""
_LOOPBACK = ("all://localhost", "all://127.0.0.1", "all://[::1]")
_CONNECTIONS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
_TOO_MANY = 429
_LEAST_SECRET = 8
_CREDENTIAL = re.compile(r"(?i)auth|cookie|cred|key|pass|secret|sig|token")
"""Names of headers whose values are removed from answers that repeat them."""
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER = re.compile(r"[\t\x20-\x7e]*")
_LOG_EVERY_S = 10.0
_EVENT_FIELDS = frozenset({b"", b"data", b"event", b"id", b"retry"})
"""Names of an event stream's fields; the empty one begins a comment, or ends an event."""
_LONGEST_ANSWER = 1 << 28
"""Bytes after decompression: a small compressed answer may be endless."""


class ServerConnection:
    """The server that `options` name, used from one event loop; nothing is sent yet.

    Credentials are removed from answers that repeat them, except short ones and words, which may be
    part of the text ("EMPTY" and "anything" are usual keys of open servers). Redirects are not
    followed: they would carry the prompt, and perhaps the key, to another host.

    `transport`, `clock` and `chance` replace the network, time and jitter in tests.

    Raises:
        ConfigurationError: `base_url` is not a URL, the variable `api_key_env` isn't set, or the
            key or a header has a character that no header can carry.
    """

    def __init__(
        self,
        options: OpenAIOptions,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ):
        self.address = Address.parse(options.base_url)
        self.clock = clock or Clock()
        self.concurrency: AdaptiveConcurrency | None = None
        self._options = options
        key = _read_key(options)
        headers = {
            _check_name(name): _check_header(text, f"option 'extra_headers' ({name!r})")
            for name, text in options.extra_headers.items()
        }
        if key and "authorization" not in map(str.lower, headers):
            headers["Authorization"] = f"Bearer {key}"
        named = [text for name, text in headers.items() if _CREDENTIAL.search(name)]
        # A server repeats KEY of "Bearer KEY", and the password of the address, by itself.
        bare = [text.rpartition(" ")[2] for text in named]
        credentials = {*named, *bare, key or "", *find_secrets(options.base_url)} - {""}
        self._credentials = [
            text.encode()
            for text in credentials
            if len(text) >= _LEAST_SECRET and not _WORD.fullmatch(text)
        ]
        self._secrets = credentials | find_secrets(options)
        self._requests = RateLimit(self.clock, options.requests_per_minute)
        self._tokens = RateLimit(self.clock, options.tokens_per_minute)
        self._chance = chance or random.Random()
        self._logged_at = float("-inf")
        self._is_admitted = False  # a request with these credentials was answered
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=None,
            limits=_CONNECTIONS,
            transport=transport,
            # Redirects aren't followed, so nothing behind http needs the certificates of
            # authorities: to read them takes longer than all else of a client.
            verify=not self.address.api.startswith("http:"),
            mounts=dict.fromkeys(_LOOPBACK),  # a proxy doesn't apply to this machine
        )

    async def get(
        self, url: str, *, max_retries: int | None = None, early_s: float = math.inf
    ) -> Any:
        """Return the JSON answer to a GET; raises like `post`. `early_s` as in `RetryState`."""
        return await self._request("GET", url, None, await self._begin(0, max_retries, early_s))

    async def post(
        self,
        url: str,
        body: Mapping[str, Any],
        *,
        tokens: int = 0,
        max_retries: int | None = None,
    ) -> Any:
        """Return the JSON answer to a POST; `tokens` count against the tokens a minute.

        Raises:
            InvalidRequestError, UnsupportedRequestError: the server refused the request.
            ConfigurationError: it rejected the credentials.
            EngineRuntimeError: every try failed, or the server couldn't be reached.
        """
        state = await self._begin(tokens, max_retries)
        answer = await self._request("POST", url, body, state)
        if tokens:
            self._tokens.give_back(tokens - _count_tokens(answer, tokens))
        return answer

    async def events(
        self, url: str, body: Mapping[str, Any], *, tokens: int = 0
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yield the JSON objects of an event stream; retried only until the first one arrived.

        Raises like `post`; `EngineRuntimeError` also for a stream that breaks off.
        """
        state = await self._begin(tokens)
        used = tokens
        while True:
            has_begun = False
            try:
                async with self._try("POST", url, body, state) as response:
                    async for event in self._parse_events(response):
                        has_begun = True
                        used = _count_tokens(event, used)
                        yield event
            except RetryableError as failure:
                if has_begun:
                    failure.give_up("the stream broke off after its beginning was handed on")
                await self._wait(state, failure)
            else:
                self._tokens.give_back(tokens - used)
                return

    async def close(self) -> None:
        await self._client.aclose()

    async def _request(
        self, method: str, url: str, body: Mapping[str, Any] | None, state: RetryState
    ) -> Any:
        while True:
            try:
                async with self._try(method, url, body, state) as response:
                    answer = _json(self._clean(await _read(response)), url)
                    self._check_error(answer, response.request.url.path, body)
                    return answer
            except RetryableError as failure:
                await self._wait(state, failure)

    async def _wait(self, state: RetryState, failure: RetryableError) -> None:
        """Wait for the next try; log now and then what is waited for, as it may take minutes."""
        seconds, now = state.plan_wait(failure), self.clock.now()
        is_worth_it = state.failed > 1 or state.waited_s >= _LOG_EVERY_S
        if is_worth_it and now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            most = state.limit_retries(failure)
            _log.warning(
                "%s; trying again in %.1f s, retry %d of %d", failure, seconds, state.failed, most
            )
        await self.clock.sleep(seconds)

    async def _begin(
        self, tokens: int, max_retries: int | None = None, early_s: float = math.inf
    ) -> RetryState:
        await self._requests.take()
        await self._tokens.take(tokens)
        limit = self._options.max_retries
        retries = limit if max_retries is None else min(max_retries, limit)
        return RetryState(self._options, retries, self.clock, self._chance, early_s)

    @asynccontextmanager
    async def _try(
        self, method: str, url: str, body: Mapping[str, Any] | None, state: RetryState
    ) -> AsyncGenerator[httpx.Response]:
        """Send one try, and yield its successful response before its body is read.

        Raises:
            RetryableError: it failed, or the reading of its response did, and may succeed later.
            EvalutionError: it failed for good.
        """
        if state.failed:  # one more request a minute; the wait for it isn't part of the timeout
            await self._requests.take()
        sent_at = self.clock.now()
        try:
            async with (
                asyncio.timeout(state.timeout_s),
                self._client.stream(method, url, json=body) as response,
            ):
                if not response.is_success:
                    await self._raise_error(response, body)
                yield response
        except RetryableError as failure:
            if failure.status == _TOO_MANY and self.concurrency is not None:
                self.concurrency.note_refusal(sent_at)
            raise
        except (httpx.TransportError, httpx.DecodingError, TimeoutError) as error:
            if (unsafe := find_tls_error(error, url)) is not None:
                raise unsafe from error
            what = quote(redact_text(str(error), self._secrets)) or "no answer in time"
            failed = f"{httpx.URL(url).path} failed: {type(error).__name__}: {what}"
            raise RetryableError(EngineRuntimeError(failed)) from error
        self._is_admitted = True
        if self.concurrency is not None:
            self.concurrency.note_answer()

    async def _raise_error(
        self, response: httpx.Response, body: Mapping[str, Any] | None
    ) -> NoReturn:
        if response.is_redirect:
            raise EngineRuntimeError(_redirect_message(response))
        content = self._clean(await _read(response))
        wait_s = parse_retry_after(response.headers, self.clock.today())
        self._fail(response.status_code, content, response.request.url.path, body, wait_s)

    def _check_error(
        self, answer: Mapping[str, Any], path: str, body: Mapping[str, Any] | None = None
    ) -> None:
        """Raise the error that an answer of status 200, or its choice, carries, as OpenRouter's."""
        if error := answer.get("error") or read_choice(answer).get("error"):  # null in some
            self._fail(_read_status(error), json.dumps({"error": error}).encode(), path, body)

    def _fail(
        self,
        status: int,
        content: bytes,
        path: str,
        body: Mapping[str, Any] | None,
        wait_s: float | None = None,
    ) -> NoReturn:
        error = make_error(status, content, path, body, is_admitted=self._is_admitted)
        if status in RETRIED_STATUSES:
            raise RetryableError(error, wait_s, status)
        raise error

    async def _parse_events(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        """Yield the events up to `[DONE]`, which some servers omit after a finished choice.

        A line of an unknown field is damage: passed over, as the standard has it, it would be a
        part of the text that is missing. An answer in JSON, of a server that doesn't stream, is the
        only event.
        """
        finished = has_begun = False
        lines = _read_lines(response)
        async for line in lines:
            if not has_begun and line.startswith(b"{"):
                yield await self._read_whole(response, line, lines)
                return
            has_begun = True
            name, _, value = line.partition(b":")
            if name not in _EVENT_FIELDS:
                path, shown = response.request.url.path, describe_text(self._clean(line))
                raise RetryableError(EngineRuntimeError(f"{path} has in its event stream {shown}"))
            if name != b"data" or not value.strip():
                continue
            data = self._clean(value.strip())
            if data == b"[DONE]":
                return
            event = _json(data, str(response.request.url))
            self._check_error(event, response.request.url.path)
            finished = finished or any(
                to_mapping(choice).get("finish_reason") for choice in to_list(event.get("choices"))
            )
            yield event
        if not finished:
            path = response.request.url.path
            raise RetryableError(EngineRuntimeError(f"{path} ended its event stream before [DONE]"))

    async def _read_whole(
        self, response: httpx.Response, first: bytes, lines: AsyncIterator[bytes]
    ) -> dict[str, Any]:
        """Read an answer in JSON, of which the first line is known."""
        content = bytearray(first)
        async for line in lines:
            content += b"\n" + line
            _check_length(content, response)
        answer = _json(self._clean(bytes(content)), str(response.request.url))
        self._check_error(answer, response.request.url.path)
        return answer

    def _clean(self, content: bytes) -> bytes:
        for secret in self._credentials:
            content = content.replace(secret, _HIDDEN)
        return content


def is_unreachable(error: EvalutionError) -> bool:
    """Return whether a request failed because nothing accepted the connection."""
    return isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)


def is_silent(error: EvalutionError) -> bool:
    """Return whether a request failed because no answer came in time."""
    return isinstance(error.__cause__, TimeoutError | httpx.TimeoutException)


async def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        _check_length(content, response)
    return bytes(content)


async def _read_lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of an event stream; httpx would also break them at U+2028 within a text."""
    rest = bytearray()
    async for part in response.aiter_bytes():
        *ended, last = part.split(b"\n")
        for line in ended:
            yield bytes(rest + line).removesuffix(b"\r")
            rest.clear()
        rest += last
        _check_length(rest, response)
    if rest:
        yield bytes(rest)


def _check_length(content: bytearray, response: httpx.Response) -> None:
    if len(content) > _LONGEST_ANSWER:
        path = response.request.url.path
        raise EngineRuntimeError(f"{path} answered more than {_LONGEST_ANSWER} bytes")


def _json(content: bytes, url: str) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        broken = f"{httpx.URL(url).path} answered {describe_text(content)}"
        raise RetryableError(EngineRuntimeError(broken)) from error
    if isinstance(answer, list):  # Together's list of models
        return {"data": answer}
    if not isinstance(answer, dict):
        raise EngineRuntimeError(
            f"{httpx.URL(url).path} answered something other than a JSON object"
        )
    return cast("dict[str, Any]", answer)


def _count_tokens(answer: Mapping[str, Any], expected: int) -> int:
    total = to_mapping(answer.get("usage")).get("total_tokens")
    return total if isinstance(total, int) else expected


def _read_status(error: Any) -> int:
    """Read the status that an error within an answer stands for; 500 if it has none."""
    entries = to_mapping(error)
    code = entries.get("code")
    if isinstance(code, int):
        return code
    return 400 if entries.get("type") == "invalid_request_error" else 500


def _redirect_message(response: httpx.Response) -> str:
    url = response.request.url
    target = url.join(response.headers.get("location", ""))
    return (
        f"{url.path} redirects to {redact_text(str(target.copy_with(query=None)))}, which is "
        "not followed, so that no key goes to another address; set base_url to the right one"
    )


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"option 'extra_headers' of engine OpenAICompatible has {name!r}, which names no "
            "HTTP header: a name has letters, digits and -_.~!#$%&'*+^`|"
        )
    return name


def _check_header(text: str, where: str) -> str:
    """Return a header's value without the space around it, as of a line read from a file."""
    text = text.strip()
    if not _HEADER.fullmatch(text):
        raise ConfigurationError(
            f"{where} of engine OpenAICompatible has a line break or another character that an "
            "HTTP header can't carry (it takes printable ASCII); give the value without it"
        )
    return text


def _read_key(options: OpenAIOptions) -> str | None:
    if options.api_key is not None:
        return _check_header(options.api_key, "option 'api_key'")
    if options.api_key_env is None:
        return None
    key = read_key(options.api_key_env)
    if not key:
        raise ConfigurationError(
            f"api_key_env names the environment variable {options.api_key_env!r}, which isn't set; "
            "set it to the key, or leave api_key_env out for a server that needs none"
        )
    return key
