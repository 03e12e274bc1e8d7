"""A suite's subsets in groups: `stem`, and `stem.abstract_algebra` in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalution_core import nearest_name, normalized

ALL = "all"


@dataclass(frozen=True, slots=True)
class Subset:
    """One subset and its group; its name is `group.child`."""

    group: str
    child: str

    @property
    def name(self) -> str:
        return f"{self.group}.{self.child}"


@dataclass(frozen=True, slots=True)
class Subsets:
    """All subsets there are, by group."""

    groups: Mapping[str, Sequence[str]]

    def chosen(self, names: str | Sequence[str]) -> list[Subset]:
        """The union of what is named, each subset once, in the order in which they are declared.

        A name is `all`, a group, or `group.child`; case, `-` and `_` don't count.

        Raises:
            ValueError: a name is none, or there is not one; says what is possible, and the nearest.
        """
        wanted = [names] if isinstance(names, str) else list(names)
        if not wanted:
            raise ValueError(f"must name at least one of {self._listed()}")
        taken = {subset.name for name in wanted for subset in self._named(name)}
        return [subset for subset in self._all() if subset.name in taken]

    def whole_groups(self, chosen: Sequence[Subset]) -> list[str]:
        """The groups of which nothing is left out."""
        taken = {subset.name for subset in chosen}
        return [
            group
            for group, children in self.groups.items()
            if all(f"{group}.{child}" in taken for child in children)
        ]

    def _all(self) -> list[Subset]:
        return [Subset(group, child) for group in self.groups for child in self.groups[group]]

    def _named(self, name: str) -> list[Subset]:
        plain = normalized(name.strip())
        found = [
            subset
            for subset in self._all()
            if plain in (ALL, normalized(subset.group), normalized(subset.name))
        ]
        if not found:
            raise ValueError(self._complaint(name))
        return found

    def _complaint(self, name: str) -> str:
        group, dot, _ = name.partition(".")
        known = {normalized(known): known for known in self.groups}
        if dot and (spelt := known.get(normalized(group.strip()))):
            possible = [f"{spelt}.{child}" for child in self.groups[spelt]]
            listed = ", ".join(possible)
        else:
            possible = [ALL, *self.groups, *(subset.name for subset in self._all())]
            listed = self._listed()
        near = self._nearest(name, possible)
        hint = f" (did you mean {near!r} for {name!r}?)" if near else ""
        return f"must be among {listed}{hint}"

    def _nearest(self, name: str, possible: Sequence[str]) -> str | None:
        # A subset's own name, without its group, is the likeliest slip.
        children = {subset.child: subset.name for subset in self._all()}
        if near := nearest_name(name, children, cutoff=0.85):
            return children[near]
        return nearest_name(name, possible)

    def _listed(self) -> str:
        example = self._all()[0].name
        return f"{ALL}, {', '.join(self.groups)} or a part of one, such as {example}"
