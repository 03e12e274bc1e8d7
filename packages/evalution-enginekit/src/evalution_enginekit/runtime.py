"""A foreign runtime: its import, its versions, its options and its arguments."""

from __future__ import annotations

import json
import operator
import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field

from evalution_core import Capability, ConfigurationError, EngineUnavailableError, Model, speed_only
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import redact_text

_LONGEST = 600
"""Characters of a message of a runtime's."""
_CLAUSE = re.compile(r"^(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)$")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def import_runtime(
    module: str, versions: str, *, distributions: tuple[str, ...] = (), install: str
) -> ModuleType:
    """Import a runtime whose installed version is in range.

    Args:
        module: what to import (`vllm`).
        versions: comma-separated bounds on release numbers (`>=0.32,<0.34`).
        distributions: packages that may provide it, in order; the module's name if none.
        install: the command that brings it, for the error.

    Raises:
        EngineUnavailableError: none is installed, or its version is out of range, or it fails.
    """
    name, found = require_distribution(*(distributions or (module,)), install=install)
    if not is_in_range(found, versions):
        raise EngineUnavailableError(f"needs {name}{versions}, found {name} {found}; {install}")
    try:
        return import_module(module)
    except Exception as error:  # the border: importing a runtime may raise anything
        raise EngineUnavailableError(
            f"{name} {found} is installed but can't be imported: {type(error).__name__}: "
            f"{redact_text(str(error))}"
        ) from error


def is_in_range(found: str, versions: str) -> bool:
    """Report whether a version's release number (`0.32.1` of `0.32.1.post2+cpu`) is in bounds."""
    for clause in versions.split(","):
        match = _CLAUSE.match(clause.strip())
        if match is None:
            raise ValueError(f"not a version bound: {clause!r}")
        if not _COMPARISONS[match[1]](_read_release(found), _read_release(match[2])):
            return False
    return True


def _read_release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version without zeros at their end, since `1.0` equals `1`."""
    match = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def shorten_error(error: BaseException) -> str:
    """Its message without secrets, and without the middle of one that lists all there is."""
    text = redact_text(str(error))
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


Python = tuple[int, int]

_LINUX = "linux"


def require_linux(runtime: str) -> None:
    """Raise `EngineUnavailableError`, which names other engines, unless this is Linux."""
    if sys.platform != _LINUX:
        raise EngineUnavailableError(f"{runtime} runs on Linux alone; {_name_other_engines()}")


def require_distribution(*names: str, install: str) -> tuple[str, str]:
    """Return the first of them that is installed, with its version; nothing is imported.

    Raises:
        EngineUnavailableError: none is.
    """
    for name in names:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    raise EngineUnavailableError(f"{' or '.join(names)} is not installed; {install}")


def linux_install_hint(runtime: str, command: str, *, lowest: Python, highest: Python) -> str:
    """The command that brings a runtime for this machine and Python, or what goes before it.

    Args:
        runtime: its name, for people.
        command: what installs it where the Python fits.
        lowest, highest: the versions of Python that it has releases for.
    """
    if sys.platform != _LINUX:
        return _name_other_engines()
    found = sys.version_info[:2]
    if lowest <= found <= highest:
        return command
    versions = sorted({lowest, highest})
    wanted = " to ".join(f"{major}.{minor}" for major, minor in versions)
    return (
        f"{runtime} has no release for Python {found[0]}.{found[1]}; make an environment with "
        f"Python {wanted}, and there {command}"
    )


def describe_distribution(*names: str) -> str:
    """Return the first of them that is installed, with its version; else the first one's name."""
    try:
        return " ".join(require_distribution(*names, install=""))
    except EngineUnavailableError:
        return names[0]


def _name_other_engines() -> str:
    return (
        f"on {sys.platform} take the engine Transformers (pip install evalution-transformers) or "
        f"LlamaCpp (pip install evalution-llama-cpp)"
    )


SET_BY_THE_ENGINE = "the engine sets it"


def merge_arguments(
    sources: Mapping[str, Mapping[str, Any]],
    *,
    refused: Mapping[str, str],
    taken: Collection[str],
) -> dict[str, Any]:
    """All of `sources` together, which are mappings of arguments by what a user calls them.

    Args:
        sources: `{"vllm_kwargs": {…}, "model.model_kwargs": {…}}`.
        refused: why an argument can't be in any of them, or which option has its place.
        taken: arguments that options of their own have set.

    Raises:
        ConfigurationError: an argument is refused, or set twice.
    """
    found: dict[str, Any] = {}
    for source, values in sources.items():
        for name, value in values.items():
            if name in refused:
                raise ConfigurationError(f"{source} may not hold {name}: {refused[name]}")
            if name in taken or name in found:
                raise ConfigurationError(f"{name} is set twice, the second time in {source}")
            found[name] = value
    return found


def find_changed_options(options: object, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named options, with their values, that aren't at their defaults."""
    default = type(options)()
    return {
        name: value
        for name in names
        if (value := getattr(options, name)) is not None and value != getattr(default, name)
    }


def refuse_unknown(
    names: Iterable[str], known: Collection[str], runtime: str, kind: str = "argument"
) -> None:
    """Raise `ConfigurationError` over a name that `runtime`, as in `vllm 0.33.0`, hasn't."""
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{runtime} has no {kind} {name!r}{did_you_mean(name, known)}; leave it out, or "
                f"install a version that has it"
            )


@contextmanager
def process_environment(
    variables: Mapping[str, str], *, defaults: Mapping[str, str] | None = None
) -> Generator[None]:
    """The process environment with `variables`, and with those of `defaults` that nobody has set.

    Afterwards it is what it was before, whatever the runtime wrote there meanwhile; processes that
    were started inside keep what they were given.
    """
    before = dict(os.environ)
    for name, value in (defaults or {}).items():
        os.environ.setdefault(name, value)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


_NOT_BY_TEXT = ("path", "tokenizer")
"""Fields of a model that have a place of their own, or no form as text."""


def parse_option_pairs(option: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    """Values by name; they are JSON where they can be read as such, else text.

    Args:
        option: as it is written on the command line, for messages.
        pairs: each KEY=VALUE.

    Raises:
        ConfigurationError: one isn't.
    """
    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, separator, text = pair.partition("=")
        if not name or not separator:
            raise ConfigurationError(f"{option} {pair!r} is not KEY=VALUE")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def parse_model_fields(option: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    """Return the fields of a `Model` but its path; raise also over a field that it lacks."""
    given = parse_option_pairs(option, pairs)
    known = [field.name for field in fields(Model) if field.name not in _NOT_BY_TEXT]
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"{option} {name!r} is not a field of a model{did_you_mean(name, known)} "
                f"(fields: {', '.join(known)})"
            )
    return given


SERVING_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
    Capability.DISTRIBUTIONS,
}
"""All that a serving runtime can do through `ServingSession`."""


@dataclass(slots=True)
class ServingOptions:
    """Options with the same meaning on each runtime."""

    _: KW_ONLY
    max_model_len: Annotated[
        int | None,
        Field(
            ge=2,
            description="Tokens the model is fed at most; None: as its configuration, less what "
            "the runtime needs for itself.",
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"],
        Field(description="Precision of weights and arithmetic; auto: that of the checkpoint."),
    ] = "auto"
    kv_cache_dtype: Annotated[
        str | None, Field(description="Precision of the cache; None: that of the arithmetic.")
    ] = None
    batch_size: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto"] | None,
        Field(description="Prompts at the runtime at once; None or auto: as many as it can run."),
    ] = speed_only(default=None)
    scored_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            description="Tokens whose prompt log-probabilities are computed at once; None: 16384, "
            "or 4096 where they are read from rows of logits.",
        ),
    ] = speed_only(default=None)


def collect_arguments(
    options: ServingOptions,
    model: Model,
    further: str,
    *,
    own: Collection[str],
    refused: Mapping[str, str],
    known: Collection[str],
    runtime: str,
) -> dict[str, Any]:
    """Return the arguments of a runtime that options and model set, checked against its version.

    Args:
        options: the engine's.
        model: whose `model_kwargs` are arguments too.
        further: the option that holds any other argument.
        own: options that are no arguments of the runtime, beside those that no runtime has.
        refused: as in `merge_arguments`.
        known: names of the runtime's arguments.
        runtime: its name and version.

    Raises:
        ConfigurationError: an argument is set twice, has another place, or doesn't exist.
    """
    kept = {"max_model_len", "batch_size", "scored_tokens", further, *own}
    named = find_changed_options(
        options, [field.name for field in fields(options) if field.name not in kept]
    )
    others: Mapping[str, Any] = getattr(options, further) or {}
    sources = {further: others, "model.model_kwargs": model.model_kwargs}
    given = named | merge_arguments(sources, refused=refused, taken=named)
    refuse_unknown(given, known, runtime)
    return given
