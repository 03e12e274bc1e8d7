"""Base of all suites: strict options, samples made of rows, and scores of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, cast

import pydantic

from evalution.error_boundary import wrap_errors
from evalution.rows.local import BUILTIN, HUB
from evalution.scoring.metrics import (
    Measure,
    MeasureAccumulator,
    Metric,
    MetricAccumulator,
    Score,
)
from evalution.user_input import LARGEST
from evalution_core import (
    Capability,
    ConfigurationError,
)
from evalution_core.kinds import RequestKind
from evalution_core.options import (
    check_option_names,
    format_value,
    option_fields,
    option_problems,
)
from evalution_core.redaction import redact
from evalution_core.requests import Message, Output, Request

_PARSE = "evalution.parse"
_SHOW = "evalution.show"
_IS_PATH = "evalution.path"
PATH = {_IS_PATH: True}
"""Metadata of a field that names a file; in a spec it is relative to the spec's folder."""
_OF_LM_EVAL = {
    "until": "stop",
    "doc_to_text": "prompt",
    "doc_to_target": "target",
    "doc_to_choice": "choices",
    "limit": "max_rows",
}


@dataclass(kw_only=True)
class SuiteDeclaration(ABC):  # noqa: B024 - abstract is what it declares: Suite, SuiteSet
    """Base of suites and of sets of them. A subclass is a dataclass whose fields are its options.

    Names and types of the options are checked when it is constructed; a subclass puts further
    checks into `check_options`. `name` is the one in results; `batch_size` caps how many requests
    run at once.
    """

    declared_as: ClassVar[str] = "suite"

    name: Annotated[
        str | None,
        pydantic.Field(description="Name of the suite in results; None takes the suite's own."),
    ] = None
    batch_size: Annotated[
        int | None,
        pydantic.Field(
            ge=1,
            le=LARGEST,
            description="Requests that run at once at most; None leaves it to the session.",
        ),
    ] = None

    def __new__(cls, *args: Any, **options: Any) -> Self:
        cls.check_names(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Check all options as they stand now, and forget what was derived from earlier ones.

        Raises:
            ConfigurationError: an option is of a wrong type, or out of range.
        """
        for name in [name for name in vars(self) if _is_cached(type(self), name)]:
            delattr(self, name)
        for option in option_fields(type(self)):
            if parse := option.metadata.get(_PARSE):
                setattr(self, option.name, parse(getattr(self, option.name)))
        if problems := option_problems(self):
            lines = [text + _hint(getattr(self, name)) for name, text in problems.items()]
            raise ConfigurationError("; ".join(lines))
        if self.name is not None and not self.name.isprintable():
            raise self.wrong("name", "must be one line of text that can be shown")
        self.check_options()

    def check_options(self) -> None:  # noqa: B027 - most have nothing to add
        """Raise `ConfigurationError` for values that fit their types and still make no sense."""

    @property
    def title(self) -> str:
        """The name in results."""
        return self.name or type(self).__name__

    @classmethod
    def describe_metrics(cls) -> Mapping[str, str]:
        """Return its metrics with their meanings; nothing where only a run knows them."""
        return {}

    @classmethod
    def check_names(cls, options: Iterable[str]) -> None:
        """Raise `ConfigurationError` for a name that isn't an option, with what there is."""
        known = [option.name for option in option_fields(cls)]
        for name in options:
            if name not in known and (meant := _OF_LM_EVAL.get(name)) in known:
                raise ConfigurationError(
                    f"suite {cls.__name__} has no option {name!r}; did you mean {meant!r}?"
                )
            metrics = ", ".join(cls.describe_metrics())
            if name in ("metric", "metrics") and name not in known and metrics:
                advice = (
                    f"; choose with metrics: [...] among {metrics}"
                    if "metrics" in known
                    else f": its metrics are always {metrics}"
                )
                raise ConfigurationError(f"suite {cls.__name__} has no option {name!r}{advice}")
        check_option_names(cls, options)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, base: Path | None = None) -> Self:
        """Make what a spec's mapping declares; relative paths in it start from `base`.

        Raises:
            ConfigurationError: an unknown option, with the nearest name, a missing one, or a value
                of a wrong type.
        """
        cls.check_names(options)
        parsed = dict(options)
        for option in option_fields(cls):
            has_default = option.default is not MISSING or option.default_factory is not MISSING
            if option.name not in options:
                if has_default:
                    continue
                raise ConfigurationError(f"suite {cls.__name__} needs the option {option.name!r}")
            if option.metadata.get(_IS_PATH):
                parsed[option.name] = resolve_path(options[option.name], base)
        return cls(**parsed)

    def to_dict(self) -> dict[str, Any]:
        """All options as JSON-safe values, for results; rows given in memory are only counted."""
        shown: dict[str, Any] = {}
        for option in option_fields(type(self)):
            value = show_option(option, getattr(self, option.name))
            if option.metadata.get(_IS_PATH) and isinstance(value, list | tuple):
                value = f"<{len(cast(Sequence[Any], value))} rows in memory>"
            shown[option.name] = redact(value)
        return shown

    def wrong(self, option: str, problem: str) -> ConfigurationError:
        """The error for an option whose value is out of range, to be raised."""
        return ConfigurationError(
            f"option {option!r} of suite {type(self).__name__} {problem}, "
            f"got {format_value(getattr(self, option))}"
        )


def yaml_form(parse: Callable[[object], Any], shown_by: Callable[[object], Any]) -> dict[str, Any]:
    """Metadata of a field whose value has a form of its own in a spec; Python takes both."""
    return {_PARSE: parse, _SHOW: shown_by}


def show_option(option: Field[Any], value: Any) -> Any:
    """An option's value in the form in which a spec has it."""
    show: Callable[[object], Any] | None = option.metadata.get(_SHOW)
    return value if show is None else show(value)


def path_options(suite: type[SuiteDeclaration]) -> list[str]:
    """The options that may name a file."""
    return [option.name for option in option_fields(suite) if option.metadata.get(_IS_PATH)]


def resolve_path(value: Any, base: Path | None) -> Any:
    """The path in an option of a spec, which starts from the spec's folder `base`."""
    if not isinstance(value, str) or base is None or value.startswith((BUILTIN, HUB, "~")):
        return value
    return str(base / value)


def _hint(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; in YAML, put a text that begins with { in quotes"
    members = cast(Sequence[Any], value) if isinstance(value, list | tuple) else [value]
    if any(isinstance(member, bool) for member in members):
        return "; in YAML, put yes, no, on and off in quotes where text is meant"
    return ""


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), cached_property)


@dataclass(slots=True)
class Sample:
    """One row, ready to run: its requests, and what its line in `samples.jsonl` will show.

    `index` is the row's number in its file, or where a suite has several subsets, in all of them
    one after the other; no two samples of a suite share one. `subset` is the part of the suite that
    it belongs to, empty where there is one part. `group` is the same for samples that belong
    together, None where the suite has no groups.
    """

    index: int
    prompt: str | Sequence[Message]
    target: str
    requests: Sequence[Request]
    subset: str = field(default="", kw_only=True)
    group: str | None = field(default=None, kw_only=True)


S = TypeVar("S", bound=Sample)
A = TypeVar("A", bound=Output)


@dataclass(kw_only=True)
class Suite(SuiteDeclaration, Generic[S, A]):
    """Base of every suite: rows become requests, and their answers scores.

    A suite holds no state: it can run any number of times.
    """

    request_kind: ClassVar[RequestKind]

    @abstractmethod
    def make_metrics(self) -> Mapping[str, Metric]:
        """The metrics by name, the main one first; none where a tally of its own knows better."""
        ...

    @abstractmethod
    def samples(self, limit: int | None = None) -> Iterator[S]:
        """The samples in the order in which they are run, made one by one; at most `limit`.

        Raises:
            ConfigurationError: while iterating, for a row that can't be read or lacks something.
        """
        ...

    @abstractmethod
    def score(self, sample: S, answers: Sequence[A]) -> Score:
        """The score of a sample from the answers to its requests, in their order."""
        ...

    def failure(self, sample: S) -> Mapping[str, Measure]:
        """Return the measures of a sample without an answer; one left out isn't counted."""
        return {
            name: Measure(metric.failed)
            for name, metric in self.make_metrics().items()
            if metric.failed is not None
        }

    def make_accumulator(self) -> MetricAccumulator:
        """Make the accumulator of one run's scores; this one sums up `make_metrics`.

        A suite whose scores are no function of two numbers a sample gives one of its own.
        """
        return MeasureAccumulator(self.make_metrics())

    def list_notices(self, remarks: Mapping[str, int], samples: int) -> Iterator[str]:
        """Yield a sentence for each remark that scores share; `remarks` has their numbers.

        Also for an option that looks mistaken, which needs no scores: `validate` has none.
        """
        for remark, count in sorted(remarks.items()):
            yield f"{count} of {samples} samples {remark}"

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Facts that decide the scores and are no options, such as the data set; for results."""
        return {}

    @property
    def needs(self) -> frozenset[Capability]:
        """Capabilities that an engine needs."""
        return frozenset({self.request_kind.capability})

    def check_samples(self, limit: int | None = None) -> int:
        """Make each sample once, and return their number.

        Raises:
            ConfigurationError: a row that can't be read or lacks a column, or no rows at all.
        """
        count = 0
        try:
            with wrap_errors("samples", ConfigurationError):
                samples = iter(self.samples(limit))
            while True:
                with wrap_errors(f"sample {count}", ConfigurationError):
                    if next(samples, None) is None:
                        break
                count += 1
            if not count:
                raise ConfigurationError("there are no rows to evaluate")
        except ConfigurationError as error:
            error.args = (f"suite {self.title!r}: {error}",)
            raise
        return count


AnySuite = Suite[Any, Any]


@dataclass(kw_only=True)
class SuiteSet(SuiteDeclaration):
    """A declaration whose suites are known once what it names has been looked up.

    Each of them is a suite of the run like any other, with a title, samples and scores of its own.
    """

    @abstractmethod
    def suites(self) -> Sequence[AnySuite]:
        """Make the suites; called before a model is loaded.

        Raises:
            ConfigurationError: something that it names isn't there, or can't be a suite.
        """
        ...


def expand_suites(declared: Iterable[SuiteDeclaration]) -> list[AnySuite]:
    """The suites that run for what was declared, in that order.

    Raises:
        ConfigurationError: as `SuiteSet.suites`, or a set is empty or holds what is no suite.
    """
    found: list[AnySuite] = []
    for one in declared:
        found += _of_set(one) if isinstance(one, SuiteSet) else [_as_suite(one)]
    return found


def _of_set(declared: SuiteSet) -> list[AnySuite]:
    with wrap_errors(f"test {declared.title!r}", ConfigurationError):
        members = list(declared.suites())
    if not members:
        raise ConfigurationError(f"test {declared.title!r} stands for no suite at all")
    return [_as_suite(member) for member in members]


def _as_suite(member: Any) -> AnySuite:
    if not isinstance(member, Suite):
        raise ConfigurationError(
            f"a test must be a suite such as suites.Generation(…), got {member!r}"
        )
    return member  # pyright: ignore[reportUnknownVariableType]
