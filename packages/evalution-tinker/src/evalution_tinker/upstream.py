"""The sampling client of tinker as Protocols, and its calls in the contract's terms.

A call raises the contract's errors, and prompt log-probabilities get one form.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, cast

from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    InvalidRequestError,
)
from evalution_core.redaction import redact_text
from evalution_core.requests import TopLogprobs
from evalution_enginekit import WrongScoresError
from evalution_enginekit.planning import check_logprobs, take_top
from evalution_tinker.runtime import read_client_version, read_server_name

_WALLS = ("only supports as proto", "always carry sample_sequence_ids")
"""Parts of a newer client's errors on an older server's answers: since 0.25, and since 0.26."""
_BAD_REQUEST, _REFUSED = (400, 413, 422), (401, 403)


class SampledSequence(Protocol):
    """One completion: the token that ended it, or that completed a stop string, included."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[float] | None: ...
    @property
    def stop_reason(self) -> str: ...


class SampleResponse(Protocol):
    """The answer to a request; `prompt_logprobs` may lack the first token's entry."""

    @property
    def sequences(self) -> Sequence[SampledSequence]: ...
    @property
    def prompt_logprobs(self) -> list[float | None] | None: ...
    @property
    def topk_prompt_logprobs(self) -> list[list[tuple[int, float]] | None] | None: ...


class SamplingClient(Protocol):
    """The methods that tinker 0.24 to 0.38 have in common."""

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any, **wanted: Any) -> Any: ...


class Sampling:
    """Requests to one sampling client, on any event loop.

    Args:
        tinker: the module.
        client: a sampling client of it.
        url: the server, for messages; None where somebody else's client knows it.
        timeout_s: seconds for a request, with the client's own retries.
        secrets: values to mask in messages of the server.
    """

    def __init__(
        self,
        tinker: Any,
        client: SamplingClient,
        url: str | None,
        timeout_s: float,
        *,
        secrets: tuple[str, ...] = (),
    ):
        self._secrets = secrets
        self._tinker = tinker
        self._client = client
        self._url = url
        self._timeout_s = timeout_s
        self._known = frozenset(inspect.signature(client.sample).parameters)

    def takes(self, parameter: str) -> bool:
        """Return True if the installed client's `sample` has this parameter."""
        return parameter in self._known

    async def sample(
        self, token_ids: Sequence[int], params: dict[str, Any], **wanted: Any
    ) -> SampleResponse:
        """Sample one completion of `token_ids`; `wanted` goes to the client's `sample` as it is.

        Raises:
            InvalidRequestError: the server refuses the request.
            ConfigurationError: it refuses the key.
            EngineUnavailableError: client and server speak versions that don't meet.
            EngineRuntimeError: it doesn't answer in time, or fails.
        """
        types = self._tinker.types
        prompt = types.ModelInput.from_ints(list(token_ids))
        try:
            asked: Any = self._client.sample(prompt, 1, types.SamplingParams(**params), **wanted)
            async with asyncio.timeout(self._timeout_s):
                return await _await_response(asked)
        except TimeoutError as error:
            raise EngineRuntimeError(
                f"the server did not answer within {self._timeout_s:g} s (request_timeout_s)"
            ) from error
        except (ValueError, AssertionError) as error:
            if any(wall in str(error) for wall in _WALLS):
                raise await asyncio.to_thread(self._wall) from error
            raise
        except self._tinker.APIStatusError as error:
            raise _to_error(error, self._secrets) from error

    def _wall(self) -> EngineUnavailableError:
        server = "the server"
        if self._url is not None:
            server = f"the server at {redact_text(self._url)} ({read_server_name(self._url)})"
        return EngineUnavailableError(
            f"tinker {read_client_version()} can't read the answers of {server}, which speaks an "
            "older form of the protocol; upgrade the server, or install an older client (tinker "
            "0.24.1 reads SkyRL 0.3.0)"
        )


async def _await_response(asked: Any) -> Any:
    """Await a request: a plain future before tinker 0.38, an awaitable since."""
    if isinstance(asked, Awaitable):
        return await cast("Awaitable[Any]", asked)
    if isinstance(asked, Future):
        return await asyncio.wrap_future(cast("Future[Any]", asked))
    raise TypeError(f"sample() gave {asked!r}, which can't be awaited")


def _to_error(error: Any, secrets: tuple[str, ...]) -> Exception:
    text = redact_text(f"the server answered HTTP {error.status_code}: {error.message}", secrets)
    if error.status_code in _BAD_REQUEST:
        return InvalidRequestError(text)
    if error.status_code in _REFUSED:
        return ConfigurationError(text)
    return EngineRuntimeError(text)


_TIE = 1e-9

TopRow = list[tuple[int, float]] | None


def align_logprobs(listed: Sequence[float | None] | None, length: int, start: int) -> list[float]:
    """Return the log-probabilities of a prompt's tokens from `start` on, which is at least 1.

    The protocol lists one for each token, the first being None; SkyRL 0.3.0 leaves that one out.

    Raises:
        WrongScoresError: another length, or a value that is missing or not a log-probability.
    """
    if listed is None:
        raise WrongScoresError("the server returned no prompt log-probabilities")
    if len(listed) not in (length, length - 1):
        raise WrongScoresError(
            f"the server returned {len(listed)} log-probabilities of a prompt of {length} tokens, "
            f"which are neither {length} nor {length - 1}, so they can't be aligned"
        )
    return check_logprobs(cast("Sequence[float]", listed[start - length + len(listed) :]))


def are_greedy(
    logprobs: Sequence[float], rows: Sequence[TopRow] | None, length: int
) -> bool | None:
    """Return True if no listed token is more likely than the prompt's own; None if unlisted.

    Args:
        logprobs: of the last tokens of the prompt.
        rows: `topk_prompt_logprobs`, with or without an entry for the first token.
        length: of the prompt.
    """
    if rows is None or len(rows) not in (length, length - 1):
        return None
    last = rows[len(rows) - len(logprobs) :]
    if not all(last):
        return None
    best = [max(value for _, value in row) for row in last if row]
    return all(
        own >= top - _TIE * max(1.0, abs(top)) for own, top in zip(logprobs, best, strict=True)
    )


def take_tops(rows: Sequence[TopRow] | None, length: int, start: int, count: int) -> TopLogprobs:
    """Return the `count` likeliest tokens at the positions of a prompt from `start` on.

    Raises:
        WrongScoresError: the server listed them for other positions, or fewer of them.
    """
    found = len(rows or ())
    if rows is None or found not in (length, length - 1):
        raise WrongScoresError(
            f"the server listed the likeliest tokens of {found} positions of a prompt of {length} "
            "tokens, so they can't be aligned"
        )
    return [take_top(dict(row or ()), count) for row in rows[start - length :]]
