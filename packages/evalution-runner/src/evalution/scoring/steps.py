"""Steps that a spec declares as data: filters of an answer, and metrics of it.

A step is a name (`strip`), or one name with its options (`regex: {pattern: …}`); the value of its
first option may stand directly (`regex: "#### ([0-9]+)"`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

from evalution_core import ConfigurationError
from evalution_core.options import check_option_names, option_fields, validate_options
from evalution_core.plugins import did_you_mean

_PLAIN = (str, int, float, type(None))
"""Types of options that are recorded by their value, of a class that this project doesn't know."""


@dataclass(frozen=True)
class Step:
    """Base of steps. A subclass is a dataclass whose fields are its options, checked when made."""

    declared_as: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        validate_options(self)


def describe_step(kind: type) -> str:
    """Return the docstring of a kind of steps in one line."""
    return " ".join((kind.__doc__ or "").split())


S = TypeVar("S")


class StepKinds(Generic[S]):
    """The steps of one sort, by the names under which a spec declares them.

    Args:
        what: the word for one of them in messages.
        kinds: their classes by name.
        base: class or protocol that a finished step of one's own belongs to.
    """

    def __init__(self, what: str, kinds: Mapping[str, type[Step]], base: type[S]):
        self.what = what
        self.kinds = kinds
        self._base = base

    def parse(self, declared: object) -> list[S]:
        """One step or a list of them as a spec declares them; finished steps stay as they are.

        Raises:
            ConfigurationError: an unknown step or option, with the nearest name, or a wrong value.
        """
        if isinstance(declared, list | tuple):
            return [self._parse_one(one) for one in cast(Sequence[object], declared)]
        return [self._parse_one(declared)]

    def to_yaml(self, steps: object) -> list[Any]:
        """The form in which a spec declares the steps; one of one's own has its class as a name."""
        return [self._declare(step) for step in cast(Sequence[S], steps)]

    def describe(self) -> dict[str, str]:
        """Return the docstring of each in one line, by name."""
        return {name: describe_step(kind) for name, kind in self.kinds.items()}

    def is_declared(self, declared: object) -> bool:
        """Report whether it is one step: a finished one, a known name, or that with its options."""
        if isinstance(declared, Mapping):
            names = list(cast(Mapping[object, Any], declared))
            return len(names) == 1 and names[0] in self.kinds
        if isinstance(declared, str):
            return declared in self.kinds
        return isinstance(declared, self._base)

    def _parse_one(self, declared: object) -> S:
        if isinstance(declared, str):
            return self._make(declared, {})
        if isinstance(declared, self._base):
            return declared
        if isinstance(declared, Mapping) and len(cast(Mapping[str, Any], declared)) == 1:
            ((name, options),) = cast(Mapping[str, Any], declared).items()
            return self._make(str(name), options)
        raise ConfigurationError(
            f"a {self.what} is a name or one name with its options, got {declared!r} "
            f"({self._list_names()})"
        )

    def _make(self, name: str, given: Any) -> S:
        if name not in self.kinds:
            raise ConfigurationError(
                f"there is no {self.what} {name!r}{did_you_mean(name, self.kinds)} "
                f"({self._list_names()})"
            )
        kind = self.kinds[name]
        known = option_fields(kind)
        if isinstance(given, Mapping) or given is None:
            options = dict(cast("Mapping[str, Any]", given or {}))
        elif known:
            options = {known[0].name: given}
        else:
            raise ConfigurationError(f"{self.what} {name} has no options, got {given!r}")
        check_option_names(kind, options)
        for option in known:
            if option.default is MISSING and option.name not in options:
                raise ConfigurationError(f"{self.what} {name} needs a {option.name}")
        return cast(S, kind(**options))

    def _declare(self, step: S) -> Any:
        for name, kind in self.kinds.items():
            if type(step) is kind:
                options = {
                    option.name: getattr(step, option.name) for option in option_fields(kind)
                }
                return {name: options} if options else name
        name = f"<{type(step).__module__}.{type(step).__qualname__}>"
        if not isinstance(step, Step):
            return name
        found = {option.name: getattr(step, option.name) for option in option_fields(type(step))}
        shown = {key: v if isinstance(v, _PLAIN) else type(v).__name__ for key, v in found.items()}
        return {name: shown} if shown else name

    def _list_names(self) -> str:
        return f"{self.what}s: {', '.join(self.kinds)}"
