"""Differences between a claim and the source."""

from __future__ import annotations

from collections.abc import Iterator

import griffe
from griffe import ParameterKind as Kind

from upstream_api.claims import Claim
from upstream_api.source import Parameter, Source, makes_itself, place_of

_STATED_NOTHING = "..."
_VARIADIC = (Kind.var_positional, Kind.var_keyword)
_CALLED = ("__call__", "__init__")
_OF_EVERY_CLASS = ("__slots__", "__doc__", "__module__")


def drift(claim: Claim, upstream: Source, own: Source) -> Iterator[str]:
    """Return a line for each fault: where it is said, which source, where in it, and what."""
    found = upstream.find(claim.upstream)
    if found is None:
        yield f"{claim.where}: {upstream.label}: there is no {claim.upstream}"
        return
    if claim.member is not None:
        if not isinstance(found, griffe.Class) or claim.member not in upstream.members(found):
            there = f"{upstream.label} {place_of(found, upstream)}"
            yield f"{claim.where}: {there}: {claim.upstream} has no field {claim.member}"
    elif claim.said is not None:
        for said, real, problem in _differences(claim.said, found, upstream, own):
            there = f"{upstream.label} {place_of(real, upstream)}"
            yield f"{place_of(said, own)}: {there}: {real.path}{problem}"


Difference = tuple[griffe.Object, griffe.Object, str]
"""Return the claim, the source and their difference, to be read after the source's name."""


def _differences(
    said: griffe.Object, found: griffe.Object, upstream: Source, own: Source
) -> Iterator[Difference]:
    if isinstance(said, griffe.Function):
        yield from _call(said, found, upstream, own)
        return
    if isinstance(said, griffe.Class) and makes_itself(said):
        yield from _call(said, found, upstream, own)
    for name, member in said.members.items():
        if isinstance(member, griffe.Function) and name in _CALLED:
            yield from _call(member, found, upstream, own)
        elif isinstance(member, griffe.Object) and _is_stated(name, said):
            real = upstream.find(f"{found.path}.{name}")
            if real is None:
                yield member, found, f" has no {name}"
            elif isinstance(member, griffe.Function):
                yield from _call(member, real, upstream, own)
            elif isinstance(real, griffe.Function):
                yield member, real, " is a method"


def _is_stated(name: str, owner: griffe.Object) -> bool:
    """A Protocol states all that is in it; a fake has private parts of its own."""
    if name.startswith("_"):
        bases = map(str, owner.bases) if isinstance(owner, griffe.Class) else ()
        return "Protocol" in bases and name not in _OF_EVERY_CLASS
    return True


def _call(
    said: griffe.Class | griffe.Function, found: griffe.Object, upstream: Source, own: Source
) -> Iterator[Difference]:
    if not isinstance(found, griffe.Class | griffe.Function):
        yield said, found, f" can't be called: it is {found.kind.value}"
        return
    if (
        isinstance(said, griffe.Function)
        and isinstance(found, griffe.Function)
        and _is_async(said) != _is_async(found)
    ):
        yield said, found, f" is {'' if _is_async(found) else 'not '}async"
    wanted, real = own.parameters(said), upstream.parameters(found)
    yield from ((said, found, f": {text}") for text in _parameter_drift(wanted, real))


def _parameter_drift(wanted: list[Parameter], real: list[Parameter]) -> Iterator[str]:
    there = {one.name: one for one in real}
    takes_any = any(one.kind is Kind.var_keyword for one in real)
    for at, one in enumerate(wanted):
        if one.kind in _VARIADIC:
            continue
        found = there.get(one.name)
        if found is None:
            if not takes_any:
                yield f"no parameter {one.name}"
        elif not _kind_serves(one, found, at, real):
            yield f"parameter {one.name} is {found.kind.value} and stands elsewhere"
        elif one.default not in (None, _STATED_NOTHING, found.default):
            yield f"default of {one.name} is {found.default}, not {one.default}"
    stated = {one.name for one in wanted}
    for one in real:
        if one.default is None and one.kind not in _VARIADIC and one.name not in stated:
            yield f"parameter {one.name} is required"


def _kind_serves(wanted: Parameter, found: Parameter, at: int, real: list[Parameter]) -> bool:
    """Report whether each call that the claim permits is one that upstream permits."""
    if wanted.kind is Kind.keyword_only:
        return found.kind in (Kind.keyword_only, Kind.positional_or_keyword)
    is_there = at < len(real) and real[at].name == wanted.name
    if wanted.kind is Kind.positional_only:
        return is_there and found.kind is not Kind.keyword_only
    return is_there and found.kind is Kind.positional_or_keyword


def _is_async(function: griffe.Function) -> bool:
    """Report whether a call gives something to await; an asynchronous generator's doesn't."""
    returned = str(function.returns or "")
    return "async" in function.labels and not returned.startswith(("AsyncGen", "AsyncIter"))
