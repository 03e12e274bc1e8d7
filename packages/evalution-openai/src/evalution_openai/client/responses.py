"""What comes back: choices of completion and chat answers, whole or in parts, as pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from evalution_core import EngineRuntimeError, FinishReason, redact
from evalution_enginekit.completion import CompletionPiece
from evalution_openai.client.error_mapping import quote

_SPELLED_ID = "token_id:"
_FINISHES: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "content_filter": "stop",
    "length": "length",
    "max_tokens": "length",
}
_LOST = frozenset({"error", "abort", "cancelled"})

Fields = Mapping[str, Any]
UseOfIds = Literal["kept", "read", "left"]


class Reader:
    """Reads the one choice of an answer.

    `top` is how many tokens of each step were asked for; None: no log-probabilities. `ids` says
    what an answer's token ids are: those of the contract ("kept"), all that were generated, for
    the session's tokenizer to read in place of the text ("read"), or nothing to go by ("left").
    """

    def __init__(self, top: int | None, ids: UseOfIds = "kept"):
        self._top = top
        self._ids = ids
        self._reasoning = ""

    def whole(self, answer: Fields) -> CompletionPiece:
        """The piece that a whole answer is.

        Raises:
            EngineRuntimeError: it isn't of the form that was to be expected, or says that the
                completion was given up.
        """
        choice = _choice(answer)
        if choice is None:
            raise EngineRuntimeError(f"the answer has no choice: {quote(str(dict(answer)))}")
        return self._piece(answer, choice, choice.get("message"), is_last=True)

    def part(self, event: Fields) -> CompletionPiece:
        """The piece that an event of a stream is; the last one may hold the usage alone."""
        choice = _choice(event)
        if choice is None:
            return CompletionPiece(**_usage(event))
        return self._piece(event, choice, choice.get("delta"), is_last=False)

    def _piece(
        self, answer: Fields, choice: Fields, message: Any, *, is_last: bool
    ) -> CompletionPiece:
        said: Fields = cast("Fields", message) if isinstance(message, Mapping) else choice
        text: Any = said.get("content") if said is not choice else choice.get("text")
        if not (text is None or isinstance(text, str)):
            raise EngineRuntimeError(f"the answer's text is no text: {quote(repr(text))}")
        ids = None if self._ids == "left" else _ids(choice.get("token_ids"))
        logprobs, top = self._logprobs(choice.get("logprobs"))
        by_ids = self._ids == "read" and ids is not None
        return CompletionPiece(
            text=None if by_ids else text or "",
            token_ids=ids,
            logprobs=logprobs,
            top_logprobs=top,
            finish=_finish(choice.get("finish_reason"), is_last=is_last),
            prompt=_text(choice.get("prompt")),
            truncated_tokens=_count(choice.get("truncated_tokens")),
            runtime=self._runtime(answer, choice, said),
            **_usage(answer),
        )

    def _logprobs(self, value: Any) -> tuple[list[float] | None, list[dict[int, float]] | None]:
        """Values of the chosen tokens, and the best of each step by id; None where not by id."""
        if self._top is None or not isinstance(value, Mapping):
            return None, None
        steps = _steps(cast("Fields", value))
        if steps is None:
            return None, None
        rows: list[dict[int, float]] = []
        for _, _, listed in steps:
            named = {_id_of(name): logprob for name, logprob in listed.items()}
            if None in named:
                return [logprob for _, logprob, _ in steps], None
            best = sorted(named.items(), key=lambda item: -item[1])[: self._top]
            rows.append({i: logprob for i, logprob in best if i is not None})
        return [logprob for _, logprob, _ in steps], rows

    def _runtime(self, answer: Fields, choice: Fields, said: Fields) -> dict[str, Any] | None:
        """What the server told besides; reasoning is all of it that has come, apart from text."""
        self._reasoning += _text(said.get("reasoning_content") or said.get("reasoning")) or ""
        details = mapping(mapping(answer.get("usage")).get("prompt_tokens_details"))
        found = {
            "model": answer.get("model"),
            "finish_reason": choice.get("finish_reason"),
            "stop_reason": choice.get("stop_reason"),
            "reasoning": self._reasoning or None,
            "refusal": said.get("refusal"),
            "tool_calls": said.get("tool_calls"),
            "cached_tokens": details.get("cached_tokens"),
            "system_fingerprint": answer.get("system_fingerprint"),
        }
        told = {name: redact(value) for name, value in found.items() if value is not None}
        return told or None


Step = tuple[str, float, dict[str, float]]


def next_tokens(answer: Fields) -> list[Step]:
    """Each generated token: how it is spelled, its log-probability, and the listed ones.

    Raises:
        EngineRuntimeError: the answer has none.
    """
    choice = _choice(answer)
    value: Any = choice.get("logprobs") if choice is not None else None
    steps = _steps(cast("Fields", value)) if isinstance(value, Mapping) else None
    if not steps:
        raise EngineRuntimeError("no log-probabilities of generated tokens came")
    return steps


def spelled_id(token: str) -> int | None:
    """The id of a token spelled `token_id:123`; None for any other spelling."""
    return _id_of(token)


def mapping(value: Any) -> Fields:
    """A JSON object's fields; none where it is something else."""
    return cast("Fields", value) if isinstance(value, Mapping) else {}


def choice_of(answer: Fields) -> Fields:
    """The first choice; an empty mapping where there is none."""
    return _choice(answer) or {}


def _choice(answer: Fields) -> Fields | None:
    choices: Any = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    first: Any = cast("list[Any]", choices)[0]
    return cast("Fields", first) if isinstance(first, Mapping) else None


def _steps(logprobs: Fields) -> list[Step] | None:
    """Both forms: lists beside each other (completions), and a list of entries (chat)."""
    content: Any = logprobs.get("content")
    if isinstance(content, list):
        return [_entry(cast("Fields", entry)) for entry in cast("list[Any]", content)]
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list):
        return None
    listed: Any = logprobs.get("top_logprobs") or []
    rows = cast("Sequence[Any]", listed)
    steps: list[Step] = []
    for at, (token, value) in enumerate(
        zip(cast("list[Any]", tokens), cast("list[Any]", values), strict=False)
    ):
        if not isinstance(value, int | float):
            return None
        row: Any = rows[at] if at < len(rows) else {}
        steps.append((str(token), float(value), dict(row or {})))
    return steps


def _entry(entry: Fields) -> Step:
    listed: dict[str, float] = {}
    for other in cast("list[Fields]", entry.get("top_logprobs") or []):
        listed[str(other["token"])] = float(other["logprob"])
    return str(entry["token"]), float(entry["logprob"]), listed


def _id_of(token: str) -> int | None:
    number = token.removeprefix(_SPELLED_ID)
    return int(number) if number != token and number.isdecimal() else None


def _finish(reason: Any, *, is_last: bool) -> FinishReason | None:
    if reason is None:
        return "stop" if is_last else None
    if reason in _LOST:
        raise EngineRuntimeError(f"the server gave the completion up: finish_reason {reason!r}")
    return _FINISHES.get(str(reason), "stop")


def _usage(answer: Fields) -> dict[str, Any]:
    told = mapping(answer.get("usage"))
    return {
        "prompt_tokens": _count(told.get("prompt_tokens")),
        "completion_tokens": _count(told.get("completion_tokens")),
    }


def _ids(value: Any) -> list[int] | None:
    if not isinstance(value, list):
        return None
    ids = cast("list[Any]", value)
    return cast("list[int]", ids) if all(type(i) is int for i in ids) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
