"""What a result says about the tokenizer that a session used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from evalution.foreign_code import foreign_errors
from evalution_core import (
    BaseInferenceSession,
    EvalutionError,
    HasTokenizer,
    SpecialTokens,
    redact,
    scrub,
)

PROBE = (
    "The quick brown fox can't jump 1234567 times,\n\n\tor so.  "
    "Grüße, 東京 и Москва! 🙂 def f(x): return x**2 # 3.14e-10"
)
"""Merges, contractions, digits, runs of blanks, several scripts, an emoji, code."""


@runtime_checkable
class _Template(Protocol):
    @property
    def source(self) -> str: ...


@runtime_checkable
class _WithVariables(Protocol):
    @property
    def variables(self) -> Mapping[str, Any]: ...


def tokenizer_record(session: BaseInferenceSession) -> dict[str, Any] | None:
    """Hashes that tell one tokenizer and chat template from another; None if there is no access.

    `encoding` is the SHA-256 of the ids of a fixed text, so it compares across engines whatever
    files the tokenizer came from; `chat_template` that of the template's text, None without one.
    `chat_template_kwargs` are the variables that the template is rendered with, if any; where some
    are redacted, `chat_template_kwargs_hash` tells them from others.
    Where the tokenizer fails, `error` says how: a record must not cost the run.
    """
    try:
        with foreign_errors("the session's tokenizer"):
            if not isinstance(session, HasTokenizer):
                return None
            return _record(session.tokenizer)
    except EvalutionError as error:
        return {"error": scrub(str(error))}


def _record(tokenizer: Any) -> dict[str, Any]:
    kind: type[Any] = tokenizer.__class__
    found: dict[str, Any] = {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "encoding": _sha256(json.dumps([int(token_id) for token_id in tokenizer.encode(PROBE)])),
    }
    if isinstance(tokenizer, SpecialTokens):
        found["leading_ids"] = list(tokenizer.leading_ids)
        found["bos_id"], found["eos_id"] = tokenizer.bos_id, tokenizer.eos_id
    template = getattr(tokenizer, "chat_template", None)
    source = template.source if isinstance(template, _Template) else template
    # A template without a text is one that a server keeps to itself.
    found["chat_template"] = _sha256(source) if isinstance(source, str) and source else None
    if isinstance(template, _WithVariables) and template.variables:
        found["chat_template_kwargs"] = shown = redact(template.variables)
        if shown != template.variables:
            exact = json.dumps(template.variables, sort_keys=True, default=repr)
            found["chat_template_kwargs_hash"] = _sha256(exact)
    return found


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
