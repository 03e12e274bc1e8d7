"""Requests of one sampling client, on any event loop, with errors as the contract has them."""

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
    scrub,
)
from evalution_tinker.server import client_version, server_name

_WALLS = ("only supports as proto", "always carry sample_sequence_ids")
"""What a newer client says of an older server's answers: 0.25 on, and 0.26 on."""
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
    """What tinker 0.24 to 0.38 have in common."""

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any, **wanted: Any) -> Any: ...


class Sampling:
    """Asks through `client`.

    Args:
        tinker: the module.
        client: a sampling client of it.
        url: the server, for messages; None where somebody else's client knows it.
        timeout_s: seconds for a request, with the client's own retries.
    """

    def __init__(self, tinker: Any, client: SamplingClient, url: str | None, timeout_s: float):
        self._tinker = tinker
        self._client = client
        self._url = url
        self._timeout_s = timeout_s
        self._known = frozenset(inspect.signature(client.sample).parameters)

    def takes(self, parameter: str) -> bool:
        """Whether the installed client has this parameter of `sample`."""
        return parameter in self._known

    async def sample(
        self, token_ids: Sequence[int], params: dict[str, Any], **wanted: Any
    ) -> SampleResponse:
        """One completion of `token_ids`; `wanted` are further parameters of the client's `sample`.

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
                return await _awaited(asked)
        except TimeoutError as error:
            raise EngineRuntimeError(
                f"the server did not answer within {self._timeout_s:g} s (request_timeout_s)"
            ) from error
        except (ValueError, AssertionError) as error:
            if any(wall in str(error) for wall in _WALLS):
                raise await asyncio.to_thread(self._wall) from error
            raise
        except self._tinker.APIStatusError as error:
            raise _refusal(error) from error

    def _wall(self) -> EngineUnavailableError:
        server = "the server"
        if self._url is not None:
            server = f"the server at {scrub(self._url)} ({server_name(self._url)})"
        return EngineUnavailableError(
            f"tinker {client_version()} can't read the answers of {server}, which speaks an older "
            "form of the protocol; upgrade the server, or install an older client (tinker 0.24.1 "
            "reads SkyRL 0.3.0)"
        )


async def _awaited(asked: Any) -> Any:
    """The result of a request: a plain future before tinker 0.38, an awaitable from then on."""
    if isinstance(asked, Awaitable):
        return await cast("Awaitable[Any]", asked)
    if isinstance(asked, Future):
        return await asyncio.wrap_future(cast("Future[Any]", asked))
    raise TypeError(f"sample() gave {asked!r}, which can't be awaited")


def _refusal(error: Any) -> Exception:
    text = scrub(f"the server answered HTTP {error.status_code}: {error.message}")
    if error.status_code in _BAD_REQUEST:
        return InvalidRequestError(text)
    if error.status_code in _REFUSED:
        return ConfigurationError(text)
    return EngineRuntimeError(text)
