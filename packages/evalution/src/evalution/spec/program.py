"""A spec as a Python program that runs the same."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import evalution
from evalution.spec.python_source import Call, Name, source_of
from evalution.spec.run_spec import Spec
from evalution_core import ConfigurationError, available, normalized, redact
from evalution_core.redaction import REDACTED, redact_fields

_PROGRAM = '''\
{docstring}

{imports}


def main(output: str | None = None) -> None:
    """Run, and print the scores; `output` is a run folder, in which an unfinished run goes on."""
    result = {run}
    for suite in result.suites:
        for name, metric in suite.metrics.items():
            print(suite.name, name, metric.value, metric.stderr, metric.n)


if __name__ == "__main__":
    main(*sys.argv[1:2])
'''


def spec_program(spec: Spec, name: str) -> str:
    """The source of a program that does what `evalution run` does with the spec called `name`.

    It holds the options that differ from their defaults. A secret is read from the environment by a
    name that the program's docstring tells; its value is not in the program.

    Raises:
        ConfigurationError: the spec is for a parity check or has a backend, or an option holds an
            object.
    """
    if spec.against is not None:
        raise ConfigurationError(
            f"{name} has the section 'against', which is for `evalution parity`; a program of a "
            "run has one engine"
        )
    if spec.backend is not None:
        raise ConfigurationError(
            f"{name} has the section 'backend'; write its program with evalution_training.prepared"
        )
    writer = _Writer()
    arguments: dict[str, Any] = {
        "engine": writer.call(spec.engine, writer.engine_name(type(spec.engine)), "engine"),
        "model": writer.model(spec),
        "tests": [writer.call(suite, None, suite.title) for suite in spec.tests],
        "output": Name("output"),
    }
    if spec.isolate:
        arguments["isolate"] = True
    arguments |= writer.non_default(spec.failures, "failures")
    run = source_of(Call("evalution.run", arguments), indent=1, prefix=len("result = "))
    return _PROGRAM.format(docstring=writer.docstring(name), imports=writer.imports, run=run)


class _Writer:
    """Turns options into source, and notes what has to be imported for it."""

    def __init__(self) -> None:
        self._modules: dict[str, set[str]] = {}
        self._secrets: dict[str, str] = {}
        self._needs_os = False

    @property
    def imports(self) -> str:
        standard = ["import os"] if self._secrets or self._needs_os else []
        lines = [*standard, "import sys", "", "import evalution"]
        for module, names in sorted(self._modules.items()):
            lines.append(f"from {module} import {', '.join(sorted(names))}")
        return "\n".join(lines)

    def docstring(self, name: str) -> str:
        lines = [
            f"The run of {name}, as `evalution emit-python` wrote it.",
            "",
            "Paths start from the folder in which it was written.",
        ]
        if self._secrets:
            lines += ["", "The environment has to hold:"]
            lines += [f"    {variable}: {what}" for variable, what in self._secrets.items()]
        body = "\n".join(lines).replace("\\", "\\\\").replace('"""', r"\"\"\"")
        return f'"""{body}\n"""'

    def engine_name(self, kind: type[Any]) -> str | None:
        """How an installed engine is called in a program; None for one that is only a class."""
        value = f"{kind.__module__}:{kind.__qualname__}"
        entries = available()
        for entry in entries:
            alike = [e for e in entries if normalized(e.name) == normalized(entry.name)]
            if entry.value == value and len(alike) == 1 and entry.name.isidentifier():
                return f"evalution.engines.{entry.name}"
        return None

    def model(self, spec: Spec) -> Call:
        found = self.call(spec.model, None, "model")
        path = spec.model.path
        if path is not None and Path(path).is_absolute() and Path(path).is_relative_to(Path.cwd()):
            # A spec's local model is known by its absolute path, also in its results.
            self._needs_os = True
            beside = source_of(Path(path).relative_to(Path.cwd()).as_posix())
            absolute = Name(f"os.path.abspath({beside})")
            found = Call(found.function, {**found.arguments, "path": absolute})
        return found

    def call(self, instance: Any, function: str | None, what: str) -> Call:
        """The constructor call of a dataclass instance, `what` being its name in messages."""
        arguments = self.non_default(instance, what)
        first = next(iter(fields(instance)), None)
        is_positional = first is not None and not first.kw_only and _default(first) is MISSING
        leading = arguments.pop(first.name) if first is not None and is_positional else None
        return Call(function or self._class_name(instance.__class__), arguments, leading)

    def non_default(self, instance: Any, what: str) -> dict[str, Any]:
        shown = redact_fields(instance)
        arguments: dict[str, Any] = {}
        # What it can't do without comes first, as somebody would write it.
        for option in sorted(fields(instance), key=lambda option: _default(option) is not MISSING):
            value = getattr(instance, option.name)
            if not option.init or _is_same(value, _default(option)):
                continue
            place = f"{what}.{option.name}"
            is_secret = shown[option.name] == REDACTED
            arguments[option.name] = self._secret(place) if is_secret else self._value(value, place)
        return arguments

    def _value(self, value: Any, place: str) -> Any:
        if isinstance(value, Mapping):
            members = cast("Mapping[Any, Any]", value)
            shown = cast("Mapping[str, Any]", redact(members))
            return {
                key: self._secret(f"{place}.{key}")
                if shown.get(str(key)) == REDACTED
                else self._value(member, f"{place}.{key}")
                for key, member in members.items()
            }
        if isinstance(value, list | tuple):
            members = cast("list[Any]", value)
            found = [self._value(member, f"{place}.{n}") for n, member in enumerate(members)]
            return tuple(found) if isinstance(value, tuple) else found
        if is_dataclass(value) and not isinstance(value, type):
            return self.call(cast(Any, value), None, place)
        if isinstance(value, str | Path):
            text = str(value)
            return text if redact(text) == text else self._secret(place)
        if value is None or isinstance(value, bool | int | float):
            return value
        raise ConfigurationError(
            f"{place} is a {type(value).__qualname__}, which no program can be written for"
        )

    def _secret(self, place: str) -> Name:
        words = re.sub(r"[^A-Za-z0-9]+", "_", place).strip("_").upper()
        variable = f"EVALUTION_{words}"
        self._secrets[variable] = place
        return Name(f"os.environ[{json.dumps(variable)}]")

    def _class_name(self, kind: type[Any]) -> str:
        name = kind.__name__
        for module in (evalution, evalution.suites):
            if getattr(module, name, None) is kind:
                return f"{module.__name__}.{name}"
        outer = kind.__qualname__.partition(".")[0]
        self._modules.setdefault(kind.__module__, set()).add(outer)
        return kind.__qualname__


def _default(option: Field[Any]) -> Any:
    if option.default_factory is not MISSING:
        return option.default_factory()
    return option.default


def _is_same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default
