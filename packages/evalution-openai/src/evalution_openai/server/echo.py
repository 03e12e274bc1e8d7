"""Log-probabilities of a prompt, for completions with `echo`.

The session's scoring path gives those of the prompt's own tokens. What else was likely at each
place it tells of nobody, so each place is asked for one token by the next-token path; a session
that keeps prefixes computes the prompt once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import overload

from evalution_core import (
    Capability,
    GenerationRequest,
    LoglikelihoodRequest,
    RequestFailure,
)
from evalution_openai.server.logprobs import TokenEntry, entries_of
from evalution_openai.server.problems import unsupported
from evalution_openai.server.served import Served

_NEEDED = (
    Capability.LOGLIKELIHOOD,
    Capability.LOGPROBS,
    Capability.TOKEN_IDS,
    Capability.IGNORE_EOS,
)


def check_can_echo(served: Served) -> None:
    """Raise a `Problem` where the engine can't score prompts token by token."""
    missing = [capability.value for capability in _NEEDED if not served.can(capability)]
    if missing:
        raise unsupported(
            f"echo with logprobs needs an engine that has {', '.join(missing)}; "
            "/v1/eval/loglikelihood needs less",
            param="echo",
        )


def echo_request(request: GenerationRequest, token_ids: Sequence[int]) -> GenerationRequest:
    """The request that generates after the echo, on the ids that are echoed.

    Of one token, an end of text counts too: clients that score take the last entry for generated.
    """
    return replace(
        request,
        prompt=None,
        input_ids=token_ids,
        ignore_eos=request.ignore_eos or request.max_new_tokens == 1,
    )


async def prompt_entries(served: Served, token_ids: Sequence[int], listed: int) -> list[TokenEntry]:
    """The tokens of a prompt, the first without a log-probability.

    Args:
        served: whose session scores.
        token_ids: the prompt; at least one.
        listed: how many of the likeliest tokens to list at each place.

    Raises:
        EvalutionError: the session refused the prompt, or failed.
    """
    first = TokenEntry(token_ids[0], None, None)
    if len(token_ids) == 1:
        return [first]
    request = LoglikelihoodRequest(
        context_input_ids=token_ids[:1], continuation_input_ids=token_ids[1:]
    )
    (score,) = await served.loglikelihood.results([request])
    if isinstance(score, RequestFailure):
        raise score.error
    if score.token_logprobs is None or len(score.token_logprobs) != len(token_ids) - 1:
        raise unsupported("this engine gave no log-probability of each token of the prompt")
    own = list(zip(token_ids[1:], score.token_logprobs, strict=True))
    if not listed or (listed == 1 and score.is_greedy):
        tops: list[dict[int, float]] = [{} for _ in own]
    else:
        tops = await _likeliest(served, token_ids, listed)
    # One path's value for one token: the two agree up to the arithmetic only.
    return [
        first,
        *(
            TokenEntry(token_id, logprob, {**top, token_id: logprob})
            for (token_id, logprob), top in zip(own, tops, strict=True)
        ),
    ]


async def _likeliest(
    served: Served, token_ids: Sequence[int], listed: int
) -> list[dict[int, float]]:
    """The likeliest tokens at each place but the first."""
    tops: list[dict[int, float]] = [{} for _ in token_ids[1:]]
    asked = NextTokens(token_ids, listed)
    async with aclosing(served.generation.finished(asked)) as outputs:
        async for index, output in outputs:
            (entry,) = entries_of(output)
            tops[-1 - index] = dict(entry.top or {})
    return tops


class NextTokens(Sequence[GenerationRequest]):
    """One token after each beginning of a prompt, the longest first.

    What that one computes serves the others, where a session keeps prefixes. Each is made when the
    session takes it: all of them together would need memory as the square of the prompt.
    """

    def __init__(self, token_ids: Sequence[int], listed: int):
        self._token_ids = token_ids
        self._listed = listed

    def __len__(self) -> int:
        return len(self._token_ids) - 1

    @overload
    def __getitem__(self, index: int) -> GenerationRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GenerationRequest]: ...
    def __getitem__(self, index: int | slice) -> GenerationRequest | Sequence[GenerationRequest]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return GenerationRequest(
            input_ids=self._token_ids[: len(self) - index],
            max_new_tokens=1,
            logprobs=self._listed,
            ignore_eos=True,
        )
