"""Fair queuing: whose request is next, by the tokens that each caller has had.

Weighted fair queuing on virtual counters of tokens: a request is taken by the counter that its
caller would have with it, and a caller that was away continues from the others' present. This is
start-time fair queuing (Goyal, Vin and Cheng, 1996) among groups, finish times (Demers, Keshav and
Shenker, 1989) among the callers of a group, and the token costs of the Virtual Token Counter (Sheng
et al., "Fairness in Serving Large Language Models", 2024). It reads no clock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import chain, count
from typing import Any, cast

from evalution_core import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
)
from evalution_core.requests import Output, Request

Caller = tuple[Hashable, ...]
"""A caller's place in the tree of groups, from its outermost group to itself."""

current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""On whose behalf the present task calls; None: each of its calls is a caller of its own."""

_CHARACTERS = 4
"""Characters of a text for one token of its estimate."""
_GENERATED = 2
"""Cost of a generated token in prompt tokens, as in the Virtual Token Counter."""
_TOKENS_A_SECOND, _LEAST_S = 1000.0, 1e-6
"""Generated tokens of one request in a second before any has ended; seconds that one takes."""


class Account:
    """Tokens that a caller, or a group of callers, was given; not under a lock of its own.

    Attributes:
        used: virtual time up to which it was served.
        now: virtual time among its members, where a newcomer begins.
        calls: calls under way, those of members included.
    """

    __slots__ = ("calls", "key", "members", "now", "parent", "serial", "used")

    def __init__(self, parent: Account | None = None, key: Hashable = None, serial: int = 0):
        self.parent = parent
        self.key = key
        self.serial = serial
        self.used = self.now = 0.0
        self.calls = 0
        self.members: dict[Hashable, Account] = {}

    def rank(self, cost: float) -> tuple[float, ...]:
        """Return the place of its request of `cost` tokens among others; the least is next."""
        group = self.parent
        if group is None or group.parent is None:
            return (self.used + cost,)
        return group.used, group.serial, self.used + cost

    def charge(self, cost: float) -> None:
        """Count a request that begins."""
        member, group = self, self.parent
        while group is not None:
            group.now = max(group.now, member.used)
            member.used += cost
            member, group = group, group.parent

    def correct(self, difference: float) -> None:
        """Add to what was charged: a request turned out cheaper or dearer, or didn't run."""
        member: Account | None = self
        while member is not None:
            member.used += difference
            member = member.parent


class Accounts:
    """The accounts of all callers that have calls under way, or have had more than others.

    Attributes:
        lock: to be held around every use of the accounts, also by a garbage collection under it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._fastest = 0.0
        self._root = Account()
        self._serials = count()

    def __len__(self) -> int:
        return sum(1 + len(group.members) for group in self._root.members.values())

    def open(self, caller: Caller) -> Account:
        """Begin a call; return the account of its caller."""
        account = self._root
        account.calls += 1
        for key in caller:
            member = account.members.get(key)
            if member is None:
                _forget_idle(account)
                member = account.members[key] = Account(account, key, next(self._serials))
            if not member.calls:
                member.used = max(member.used, account.now)
            member.calls += 1
            account = member
        return account

    def close(self, account: Account) -> None:
        """End a call. An account is kept only as long as others have had less."""
        member: Account | None = account
        while member is not None:
            member.calls -= 1
            group = member.parent
            if group is not None and not member.calls and member.used <= group.now:
                del group.members[member.key]
            if not member.calls:
                member.members.clear()
                member.now = 0.0
            member = group

    def note_made(self, tokens: int, seconds: float) -> None:
        """Note the generated tokens of a request, and the seconds that it took."""
        self._fastest = max(self._fastest, tokens / max(seconds, _LEAST_S))

    def count_made(self, seconds: float) -> int:
        """Return the tokens that a request was given at most in so many seconds."""
        return math.ceil(seconds * (self._fastest or _TOKENS_A_SECOND))


def _forget_idle(group: Account) -> None:
    """Forget the members without calls that the others have caught up with."""
    size = len(group.members)
    if size & (size - 1):
        return  # not at each newcomer: at sizes that are powers of two
    for key, member in list(group.members.items()):
        if not member.calls and member.used <= group.now:
            del group.members[key]


def count_prompt(request: Request, most: float = math.inf) -> tuple[int, int]:
    """Count the characters and the token ids of a request's prompt, or of what it scores.

    Counting of messages and tools ends beyond `most` characters. A malformed request has none here;
    it is refused where it is read.
    """
    try:
        return _count_fields(request, most)
    except (AttributeError, RecursionError, TypeError):
        return 0, 0


def count_prompts(requests: Sequence[Request]) -> list[tuple[int, int]]:
    """Count each as `count_prompt`; neighbours that share one prompt, as choices do, once."""
    counts: list[tuple[int, int]] = []
    for at, request in enumerate(requests):
        is_choice = at > 0 and _is_prompt_shared(request, requests[at - 1])
        counts.append(counts[-1] if is_choice else count_prompt(request))
    return counts


def _is_prompt_shared(one: Request, other: Request) -> bool:
    if not isinstance(one, GenerationRequest) or not isinstance(other, GenerationRequest):
        return False
    return (
        one.input_ids is other.input_ids
        and one.rendered_prompt is other.rendered_prompt
        and one.prompt is other.prompt
        and one.messages is other.messages
        and one.tools is other.tools
    )


def _count_fields(request: Request, most: float) -> tuple[int, int]:
    if isinstance(request, LoglikelihoodRequest):
        ids = [*(request.context_input_ids or ()), *(request.continuation_input_ids or ())]
        parts = [*(request.messages or ())]
        text = len(request.context) + len(request.continuation)
        return text + (count_text(parts, most) if parts else 0), len(ids)
    if isinstance(request, RollingLoglikelihoodRequest):
        return (0, len(request.input_ids)) if request.input_ids else (len(request.text), 0)
    if request.input_ids is not None:
        return 0, len(request.input_ids)
    text = len(request.rendered_prompt or request.prompt or "")
    parts = [*(request.messages or ()), *(request.tools or ())]
    return text + (count_text(parts, most) if parts else 0), 0


def estimate_cost(request: Request, size: tuple[int, int], max_model_len: int | None) -> float:
    """Estimate the tokens of a request before it runs, generated ones by its limit.

    `size` is the `count_prompt` of it.
    """
    characters, ids = size
    cost = 1.0 + ids + characters / _CHARACTERS
    if isinstance(request, GenerationRequest):
        longest = request.max_new_tokens if max_model_len is None else max_model_len
        with suppress(TypeError):  # a malformed limit
            cost += _GENERATED * min(request.max_new_tokens, longest)
    return cost


def find_saving(request: Request, output: Output, max_model_len: int | None) -> float:
    """Return the tokens by which a generation cost less than its estimate; else 0."""
    if not isinstance(request, GenerationRequest) or not isinstance(output, GenerationOutput):
        return 0.0
    if output.completion_tokens is None:
        return 0.0
    limit = request.max_new_tokens
    with suppress(TypeError):  # a malformed limit
        limit = limit if max_model_len is None else min(limit, max_model_len)
        return float(_GENERATED * max(0, limit - output.completion_tokens))
    return 0.0


def count_text(value: Any, most: float = math.inf) -> int:
    """Count the characters of all texts in a JSON value, at any depth, names of fields included.

    A chat template may write any of them. Anything without a text counts as one. Counting ends
    beyond `most`.
    """
    return _count_parts((value,), most)


def _count_parts(parts: Iterable[Any], most: float) -> int:
    total = 0
    for part in parts:
        if isinstance(part, str):
            total += len(part) or 1
        elif isinstance(part, _NUMBERS):
            total += 1
        elif isinstance(part, _LISTS):
            total += _count_parts(cast("Sequence[Any]", part), most - total) or 1
        elif isinstance(part, _MAPPINGS):
            fields = cast("Mapping[Any, Any]", part)
            total += _count_parts(chain(fields, fields.values()), most - total) or 1
        else:
            total += 1
        if total > most:
            break
    return total


_NUMBERS = (int, float, type(None))
_LISTS, _MAPPINGS = (list, tuple), (dict, Mapping)
"""With `dict` before the slow check of an abstract class: a body can have millions of values."""
