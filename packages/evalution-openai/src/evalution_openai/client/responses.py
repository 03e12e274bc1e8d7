"""Answers of a server: completions, whole or in parts, and errors."""

from __future__ import annotations

import json
import math
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from evalution_core import (
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
    EvalutionError,
    InvalidRequestError,
    UnsupportedRequestError,
)
from evalution_core.redaction import redact, redact_text
from evalution_core.requests import FinishReason
from evalution_enginekit.completion import CompletionChunk
from evalution_openai.client.dialects import find_unasked_fields

_SPELLED_ID = "token_id:"
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_LOST = frozenset(
    {"abort", "cancelled", "error", "incomplete", "insufficient_system_resource", "network_error"}
    | {"timeout"}
)

Fields = Mapping[str, Any]
UseOfIds = Literal["kept", "read", "left"]


class ResponseReader:
    """Reads the one choice of an answer.

    Args:
        top: the number of tokens listed at each step; None: no log-probabilities.
        ids: use of the answer's token ids: they are the output's ("kept"), they are everything
            that was generated and are decoded in place of the text ("read"), or ignored ("left").
    """

    def __init__(self, top: int | None, ids: UseOfIds = "kept"):
        self._top = top
        self._ids = ids
        self._reasoning = ""

    def read_answer(self, answer: Fields) -> CompletionChunk:
        """Read a whole answer.

        Raises:
            EngineRuntimeError: it isn't a completion, or the server aborted the completion.
        """
        choice = read_choice(answer)
        if not choice:
            raise EngineRuntimeError(f"the answer has no choice: {quote(str(dict(answer)))}")
        if "text" not in choice and not isinstance(choice.get("message"), Mapping):
            raise EngineRuntimeError(f"the choice has no text and no message: {quote(str(choice))}")
        return self._read_chunk(answer, choice, choice.get("message"), is_last=True)

    def read_event(self, event: Fields) -> CompletionChunk:
        """Read an event of a stream; the last one may hold only the usage."""
        choice = read_choice(event)
        if not choice:
            return CompletionChunk(**_usage(event))
        message = choice.get("delta") or choice.get("message")
        return self._read_chunk(event, choice, message, is_last=False)

    def _read_chunk(
        self, answer: Fields, choice: Fields, message: Any, *, is_last: bool
    ) -> CompletionChunk:
        content: Fields = cast("Fields", message) if isinstance(message, Mapping) else choice
        text: Any = content.get("content") if content is not choice else choice.get("text")
        if not (text is None or isinstance(text, str)):
            raise EngineRuntimeError(f"the answer's text is not a string: {quote(repr(text))}")
        ids = None if self._ids == "left" else read_ids(choice.get("token_ids"))
        try:
            logprobs, top = self._logprobs(choice.get("logprobs"))
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
            listed = quote(repr(choice.get("logprobs")))
            raise EngineRuntimeError(f"the answer's log-probabilities are none: {listed}") from None
        by_ids = self._ids == "read" and ids is not None
        return CompletionChunk(
            text=None if by_ids else text or "",
            token_ids=ids,
            logprobs=logprobs,
            top_logprobs=top,
            finish=_finish(choice.get("finish_reason"), is_last=is_last),
            prompt=read_text(choice.get("prompt")),
            truncated_tokens=read_count(choice.get("truncated_tokens")),
            runtime=self._read_runtime(answer, choice, content),
            **_usage(answer),
        )

    def _logprobs(self, value: Any) -> tuple[list[float] | None, list[dict[int, float]] | None]:
        """Read the values of the chosen tokens, and the best of each step where they have ids."""
        steps = None if self._top is None else _steps(to_mapping(value))
        if steps is None:
            return None, None
        rows: list[dict[int, float]] = []
        for _, _, listed in steps:
            named = {parse_id(name): logprob for name, logprob in listed.items()}
            if not all(logprob <= _ABOVE_ZERO for logprob in named.values()):
                raise ValueError("a listed log-probability is NaN or above 0")
            if None in named or (self._top and not named):
                return [logprob for _, logprob, _ in steps], None
            best = sorted(named.items(), key=lambda item: -item[1])[: self._top]
            rows.append({i: logprob for i, logprob in best if i is not None})
        return [logprob for _, logprob, _ in steps], rows

    def _read_runtime(
        self, answer: Fields, choice: Fields, content: Fields
    ) -> dict[str, Any] | None:
        """Collect what the server reports beside the text; reasoning is all of it so far."""
        reasoning = content.get("reasoning_content") or content.get("reasoning")
        self._reasoning += read_text(reasoning) or ""
        details = to_mapping(to_mapping(answer.get("usage")).get("prompt_tokens_details"))
        found = {
            "model": answer.get("model"),
            "finish_reason": choice.get("finish_reason"),
            "stop_reason": choice.get("stop_reason"),
            "reasoning": self._reasoning or None,
            "refusal": content.get("refusal"),
            "tool_calls": content.get("tool_calls"),
            "cached_tokens": details.get("cached_tokens"),
            "system_fingerprint": answer.get("system_fingerprint"),
        }
        return {n: redact(value) for n, value in found.items() if value is not None} or None


_ABOVE_ZERO = 1e-6
"""Rounding error above 0 that is accepted for the log-probability of a certain token."""


def read_logprobs(listed: Any, expected: int, what: str) -> list[float]:
    """Read the log-probabilities of `expected` tokens.

    Raises:
        EngineRuntimeError: there are fewer or more, or one that is null, not finite or above 0.
    """
    values = to_list(listed)
    if len(values) != expected:
        raise EngineRuntimeError(f"{what}: {len(values)} values for {expected} tokens")
    for at, value in enumerate(values):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise EngineRuntimeError(f"{what}: value {at} of {expected} is {value!r}")
        if value > _ABOVE_ZERO:
            raise EngineRuntimeError(f"{what}: value {at} of {expected} is {value!r}, above 0")
    return [float(value) for value in values]


Step = tuple[str, float, dict[str, float]]


def read_steps(answer: Fields) -> list[Step]:
    """Read the spelling, log-probability and listed tokens of each generated token.

    Raises:
        EngineRuntimeError: the answer has none.
    """
    steps = _steps(to_mapping(read_choice(answer).get("logprobs")))
    if not steps:
        raise EngineRuntimeError("no log-probabilities of generated tokens came")
    return steps


def parse_id(token: str) -> int | None:
    """Parse the id of a token spelled `token_id:123`; None for any other spelling."""
    number = token.removeprefix(_SPELLED_ID)
    return int(number) if number != token and number.isdecimal() else None


def to_mapping(value: Any) -> Fields:
    """Return a JSON object's fields; none for anything else."""
    return cast("Fields", value) if isinstance(value, Mapping) else {}


def to_list(value: Any) -> list[Any]:
    """Return a JSON array's items; none for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def read_choice(answer: Fields) -> Fields:
    """Return the first choice; an empty mapping without one."""
    return to_mapping(next(iter(to_list(answer.get("choices"))), None))


def read_ids(value: Any) -> list[int] | None:
    """Read a list of token ids; None for anything else."""
    ids = to_list(value) if isinstance(value, list) else [None]
    return cast("list[int]", ids) if all(type(i) is int for i in ids) else None


def check_fed(sent: Sequence[int] | None, fed: int | None) -> None:
    """Raise `EngineRuntimeError` if the server fed another number of ids than it was sent."""
    if sent is not None and fed is not None and fed != len(sent):
        raise EngineRuntimeError(
            f"{len(sent)} ids were sent and the server fed {fed}: it cuts or adds tokens; set "
            "max_model_len to the length that it takes"
        )


def read_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def read_count(value: Any) -> int | None:
    return value if type(value) is int else None


def _steps(logprobs: Fields) -> list[Step] | None:
    """Read both forms: parallel lists (completions), and a list of entries (chat)."""
    if isinstance(logprobs.get("content"), list):
        return [_entry(entry) for entry in to_list(logprobs["content"])]
    if not isinstance(logprobs.get("token_logprobs"), list):
        return None
    rows = to_list(logprobs.get("top_logprobs"))
    pairs = zip(to_list(logprobs.get("tokens")), logprobs["token_logprobs"], strict=False)
    steps: list[Step] = []
    for at, (token, value) in enumerate(pairs):
        if not isinstance(value, int | float):
            return None
        row = rows[at] if at < len(rows) else None
        steps.append((str(token), float(value), dict(row or {})))
    return steps


def _entry(entry: Any) -> Step:
    listed = {
        str(other["token"]): float(other["logprob"]) for other in entry.get("top_logprobs") or ()
    }
    return str(entry["token"]), float(entry["logprob"]), listed


def _finish(reason: Any, *, is_last: bool) -> FinishReason | None:
    if not reason:  # "" in each event but the last: sgl-project/sglang#3912, ollama/ollama#4357
        return "stop" if is_last else None
    if not isinstance(reason, str):
        raise EngineRuntimeError(f"the server answered a finish_reason that is no text: {reason!r}")
    if reason.lower() in _LOST:
        raise EngineRuntimeError(f"the server aborted the completion: finish_reason {reason!r}")
    return "length" if reason.lower() in _CUT else "stop"


def _usage(answer: Fields) -> dict[str, Any]:
    usage = to_mapping(answer.get("usage"))
    return {
        "prompt_tokens": read_count(usage.get("prompt_tokens")),
        "completion_tokens": read_count(usage.get("completion_tokens")),
    }


_HTML = re.compile(r"\s*<(!doctype html|html)\b", re.IGNORECASE)
_HEAD = 4096
"""Characters of a web page that are searched for its title."""
_TITLE = re.compile(r"<title>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_LONGEST_QUOTE = 200
_WRONG_REQUEST = frozenset({400, 403, 413, 422})
_TOO_LONG = (
    *("maximum context length", "context_length_exceeded", "exceeds the available context"),
    *("maximum model length", "model's context length", "context window"),
    *("prompt is too long", "input is too long", "`inputs` tokens + `max_new_tokens` must be <="),
)


def make_error(
    status: int,
    body: bytes,
    path: str,
    sent: Mapping[str, Any] | None = None,
    *,
    is_admitted: bool = False,
) -> EvalutionError:
    """Make the error for an answer that isn't a success to the request `sent`.

    A request that the server finds wrong is the request's failure (`InvalidRequestError`,
    `ContextLengthError`, `UnsupportedRequestError`); a key that it rejects is a
    `ConfigurationError`; anything else is the server's failure. A 403 is about the key until
    another request was answered with it (`is_admitted`), and then about the request: moderation
    answers it, and gateways for paths that they don't have.
    """
    message, code = read_error(body)
    said = f"{path} answered {status}: {message}"
    if status == 401 or (status == 403 and not is_admitted):
        return ConfigurationError(
            f"the server doesn't accept the credentials: {said}; set api_key, or api_key_env to "
            "the name of the environment variable that holds it"
        )
    if code == "unsupported" or status == 501:
        return UnsupportedRequestError(said)
    if status == 403:
        said += "; it answered others, so it refuses what this one asks, or this route to this key"
    if status in _WRONG_REQUEST:
        if unasked := find_unasked_fields(sent or {}, message):
            without = ", ".join(f"{name!r}: None" for name in unasked)
            said += (
                f"; sent in place of the server's own setting: extra_body={{{without}}} "
                "leaves that to the server"
            )
        lower = message.lower()
        too_long = code == "context_length_exceeded" or any(mark in lower for mark in _TOO_LONG)
        return ContextLengthError(said) if too_long else InvalidRequestError(said)
    return EngineRuntimeError(said)


def find_tls_error(error: Exception, url: str) -> ConfigurationError | None:
    """Find the TLS error that ended a connection, which no retry can fix; None for any other."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        advice = "set SSL_CERT_FILE to the authority's certificate, or base_url to the right name"
        why = f"the certificate isn't accepted ({cause.verify_message})"
    else:
        advice = "where the server speaks plain http, say so in base_url"
        why = quote(str(cause))
    return ConfigurationError(f"no TLS connection to {redact_text(url)}: {why}; {advice}")


def read_error(body: bytes) -> tuple[str, str | None]:
    """Read message and code of an error body in any of its forms; redacted and cut short."""
    text = body.decode("utf-8", "replace")
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        return describe_text(body) if _HTML.match(text) else quote(text), None
    code: Any = None
    for key in ("error", "detail", "message"):
        if isinstance(content, Mapping) and key in content:
            entries = cast("Mapping[str, Any]", content)
            code = entries.get("code", code)
            content = entries[key]
    if isinstance(content, str):
        return quote(content), code if isinstance(code, str) else None
    return quote(json.dumps(content)), code if isinstance(code, str) else None


def describe_text(content: bytes) -> str:
    """Describe an answer that isn't JSON: a web page by its title, anything else as it begins."""
    text = content.decode("utf-8", "replace")
    if _HTML.match(text):
        title = _TITLE.search(text[:_HEAD])
        return f"a web page (HTML) with the title {quote(title[1] if title else '')!r}"
    return f"invalid JSON: {quote(text)!r}"


def quote(text: str) -> str:
    """Quote a server's text in a message: redacted, on one line, at most 200 characters."""
    line = " ".join(redact_text(text).split())
    return line if len(line) <= _LONGEST_QUOTE else f"{line[:_LONGEST_QUOTE]}…"
