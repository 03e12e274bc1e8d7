"""Log-probabilities as the two APIs of OpenAI spell them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evalution_core import GenerationOutput
from evalution_openai.server.answers import Alternative, ChatLogprobs, ChatToken, TokenLists
from evalution_openai.server.bodies import GenerationBody
from evalution_openai.server.problems import unsupported
from evalution_openai.server.served import ID_SPELLING, Served

Spelling = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token with its log-probability and the likeliest ones at its place.

    None: there is nothing before it.
    """

    token_id: int
    logprob: float | None
    top: Mapping[int, float] | None


def spelling_of(body: GenerationBody, served: Served) -> Spelling:
    if body.return_tokens_as_token_ids:
        return lambda token_id: f"{ID_SPELLING}{token_id}"
    return served.spelling


def entries_of(output: GenerationOutput) -> list[TokenEntry]:
    """The generated tokens; the chosen one is among the listed, as with vLLM.

    Raises:
        Problem: the session gave no log-probabilities.
    """
    if output.token_ids is None or output.token_logprobs is None:
        raise unsupported("this engine gave no log-probabilities of what it generated")
    tops = output.top_logprobs or [{} for _ in output.token_ids]
    return [
        TokenEntry(token_id, logprob, {**top, token_id: logprob})
        for token_id, logprob, top in zip(
            output.token_ids, output.token_logprobs, tops, strict=True
        )
    ]


def token_lists(entries: Sequence[TokenEntry], spelling: Spelling, offset: int = 0) -> TokenLists:
    """The four lists of a completion; `offset` is where its text begins."""
    tokens = [spelling(entry.token_id) for entry in entries]
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_listed(entry.top, spelling) for entry in entries],
        "text_offset": offsets,
    }


def _listed(top: Mapping[int, float] | None, spelling: Spelling) -> dict[str, float] | None:
    """By text. Of two tokens with the same text the likelier one stays."""
    if top is None:
        return None
    listed: dict[str, float] = {}
    for token_id, logprob in sorted(top.items(), key=lambda pair: -pair[1]):
        listed.setdefault(spelling(token_id), logprob)
    return listed


def chat_logprobs(output: GenerationOutput, spelling: Spelling, count: int) -> ChatLogprobs:
    """The tokens of a message, each with `count` alternatives."""
    content: list[ChatToken] = []
    for entry in entries_of(output):
        best = sorted((entry.top or {}).items(), key=lambda pair: -pair[1])[:count]
        content.append(
            {
                **_alternative(spelling(entry.token_id), entry.logprob),
                "top_logprobs": [_alternative(spelling(i), value) for i, value in best],
            }
        )
    return {"content": content}


def _alternative(token: str, logprob: float | None) -> Alternative:
    known = not token.startswith(ID_SPELLING)
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()) if known else None}
