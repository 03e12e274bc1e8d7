"""A spec from the words of a command line: suites or a YAML file, a model, an engine, settings.

Everything ends in the document that a YAML file would hold, so that `--print-spec` can write it and
one set of checks judges it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, cast

import yaml

from evalution.doctor.engine_choice import SERVER, EngineChoice, choose_engine, is_server
from evalution.hints import name_engine_options
from evalution.rows.columns import MissingOptionsError
from evalution.rows.local import BUILTIN
from evalution.runs.run_identity import find_free_name
from evalution.suites.discovery import available_suites, load_suite
from evalution.user_input import parse_path
from evalution.yaml_spec.run_spec import Spec, find_spec, parse_spec
from evalution.yaml_spec.yaml_file import as_mapping, read_declaration, read_yaml
from evalution_core import ConfigurationError
from evalution_core.builtins import BUILTINS
from evalution_core.discovery import ENGINES
from evalution_core.options import option_fields
from evalution_core.plugins import did_you_mean, normalize

SPEC_ENDINGS = (".yaml", ".yml")
_TOP = ("isolate", "on_error", "max_failures", "record_tokens")
_RULE = (
    "a setting is engine.OPTION=VALUE, model.FIELD=VALUE or SUITE.OPTION=VALUE, or without a dot "
    f"{', '.join(_TOP)}"
)


@dataclass(frozen=True, slots=True)
class InlineSpec:
    """The words of a run's command line; `targets` are suites, files of rows, or one spec."""

    targets: Sequence[str]
    model: str | None = None
    engine: str | None = None
    settings: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """The words that a command line has for it."""
        named = (("--model", self.model), ("--engine", self.engine))
        options = [word for pair in named if pair[1] is not None for word in pair]
        return [
            *self.targets,
            *map(str, options),
            *(w for s in self.settings for w in ("--set", s)),
        ]


@dataclass(frozen=True, slots=True)
class SpecDocument:
    """The content of a spec's file, its place, the engine if one was chosen, and what was set."""

    content: Mapping[str, Any]
    path: Path
    choice: EngineChoice | None
    settings: Sequence[str] = ()

    def parse(self) -> Spec:
        """Return the spec; errors begin with the name of its file, where it comes from one."""
        try:
            return parse_spec(self.content, self.path)
        except ConfigurationError as error:
            for key, _, text in (setting.partition("=") for setting in self.settings):
                # JSON would be shown as a list, not as a text.
                if text[:1] + text[-1:] == "[]" and repr(text) in str(error):
                    words = [word.strip(" '\"") for word in text[1:-1].split(",")]
                    form = shlex.join(["--set", f"{key}={json.dumps(words)}"])
                    error.add_note(f"hint: a list is JSON, its texts in double quotes: {form}")
            if self.path.name:
                error.args = (f"{self.path}: {error}",)
            elif isinstance(error, MissingOptionsError):
                rows = next(
                    find_free_name(test.get("name", test["type"]), ("engine", "model"))
                    for test in self.content["tests"]
                    if "data" in test and not test.keys() >= error.proposed.keys()
                )
                settings = (
                    shlex.join(["--set", f"{rows}.{option}={column}"])
                    for option, column in error.proposed.items()
                )
                error.add_note(f"hint: {' '.join(settings)}")
                for guess in self.list_guesses():
                    error.add_note(f"hint: {guess}")
            raise

    def list_guesses(self) -> Iterator[str]:
        """Yield a line for each file of rows for which nothing but columns of a text is set."""
        for test in self.content.get("tests", ()) if not self.path.name else ():
            if test["type"] == "generation" and test.keys() - {"prompt", "target"} == _GUESSED:
                rows = find_free_name(test["name"], ("engine", "model"))
                yield (
                    f"{rows} is run as a generation; --set {rows}.choices=COLUMN makes it "
                    f"multiple choice, --set {rows}.text=COLUMN perplexity"
                )

    def to_yaml(self, limit: int | None) -> str:
        """Return the YAML, where `limit` is an option of each test.

        Raises:
            ConfigurationError: a test has no such option.
        """
        content = dict(self.content)
        if limit is not None:
            content["tests"] = [_bound(test, limit) for test in content["tests"]]
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _bound(test: object, limit: int) -> Mapping[str, Any]:
    name, options = read_declaration(test, "test")
    known = {option.name for option in option_fields(load_suite(name))}
    bound = next((option for option in ("max_rows", "limit") if option in known), None)
    if bound is None:
        raise ConfigurationError(
            f"suite {name} has no option for --limit; leave it out, and give it to the run"
        )
    return {"type": name, **options, bound: min(limit, options.get(bound) or limit)}


def make_document(line: InlineSpec) -> SpecDocument:
    """Return the document that the words stand for.

    Raises:
        ConfigurationError: a word is wrong, or no engine for the model is installed.
    """
    path, content = _read_targets(line)
    for section, key in (("engine", "type"), ("model", "path")):
        content[section] = _open(content.get(section), key)
    tests: list[Any] = []
    if is_list := isinstance(content.get("tests"), list):
        tests = content["tests"] = [_open(test, "type") for test in content["tests"]]
    sections = [content["engine"], content["model"], *tests]
    if not (is_list and all(isinstance(section, dict) for section in sections)):
        parse_spec(content, path)  # which says what it must be
    if line.engine is not None:
        content["engine"] = {"type": line.engine}
    if line.model is not None:
        _place_model(content, line.model, path)
    for setting in line.settings:
        _apply(content, setting)
    is_complete = line.engine is not None or path.name
    choice = None if is_complete else _choose(content, line.model)
    for section in ("engine", "model"):
        if not content[section]:
            del content[section]
    return SpecDocument(content, path, choice, line.settings)


def _read_targets(line: InlineSpec) -> tuple[Path, dict[str, Any]]:
    """Return the path and the content of a spec, or `.` and the declarations of suites."""
    targets = [part for target in line.targets for part in _split(target)]
    specs = [target for target in targets if _is_spec(target, has_model=line.model is not None)]
    if not targets:
        raise ConfigurationError(
            "name a suite or a spec: `evalution run hellaswag --model PATH`, or `evalution run "
            "spec.yaml`; `evalution suites` lists the suites"
        )
    if not specs:
        content: dict[str, Any] = {"engine": None, "model": None, "tests": []}
        for target in targets:
            taken = _map_sections(content)
            content["tests"].append(_declare_test(target, line.settings, taken))
        return Path(), content
    if len(targets) > 1:
        raise ConfigurationError(f"{specs[0]} is a spec, which stands alone; run one at a time")
    path = find_spec(specs[0])
    try:
        return path, dict(as_mapping(read_yaml(path), "a spec"))
    except ConfigurationError as error:
        if str(path) not in str(error):
            error.args = (f"{path}: {error}",)
        raise


def _open(declared: Any, key: str) -> Any:
    """Return a section as a mapping, into which settings can be written."""
    if declared is None:
        return {}
    return {key: declared} if isinstance(declared, str) else declared


def _choose(content: dict[str, Any], model: str | None) -> EngineChoice:
    """Put the engine for the model into a document without one."""
    if model is None:
        raise ConfigurationError(
            "name the model: --model PATH (a folder, a .gguf file, a Hub name, the URL of a "
            "server, or builtin:tiny)"
        )
    choice = choose_engine(model, content["engine"])
    content["engine"] = {"type": choice.engine, **content["engine"]}
    return choice


def _split(target: str) -> list[str]:
    """Return the parts of `a,b`, as lm-eval writes several tasks; a file keeps its comma."""
    is_file = parse_path(target).exists()
    return [target] if is_file else [part for part in target.split(",") if part]


def _is_spec(target: str, *, has_model: bool) -> bool:
    """Return whether a word names a spec; JSON is one, or with a model rows to ask it."""
    if target.startswith(BUILTIN):
        return not _is_builtin_rows(target)
    if target.endswith(".json"):
        return not has_model
    if target.endswith(SPEC_ENDINGS):
        return True
    return parse_path(target).is_dir() and not _is_suite(target)


def _is_suite(target: str) -> bool:
    return normalize(target) in map(normalize, available_suites())


def _is_builtin_rows(target: str) -> bool:
    name, _, rows = target.removeprefix(BUILTIN).partition("/")
    return f"rows/{rows}" in BUILTINS.load(name)


def _declare_test(target: str, settings: Sequence[str], taken: Container[str]) -> dict[str, Any]:
    """Return the declaration of a suite, of lm-eval's `lm_eval/TASK`, or of a file of rows.

    `taken` are the names of sections that stand before it.
    """
    package, _, task = target.partition("/")
    if normalize(package) == "lmeval" and task:
        return {"type": "lm_eval", "tasks": task}
    path = parse_path(target)
    is_file = bool(path.suffix) or (path.is_file() and not _is_suite(target))
    if not target.startswith(BUILTIN) and (":" in target or not is_file):
        return {"type": target}
    names = {normalize(path.stem), normalize(find_free_name(path.stem, taken))}
    keys = [setting.partition("=")[0].rpartition(".") for setting in settings]
    options = {(normalize(section), option) for section, _, option in keys}
    kinds = (
        kind
        for option, kind in _ROW_SUITES.items()
        if any((name, option) in options for name in (*names, normalize(kind)))
    )
    return {"type": next(kinds, "generation"), "name": path.stem, "data": target}


_ROW_SUITES = {"choices": "multiple_choice", "text": "perplexity"}
"""The suite of a file of rows by the option that it alone has."""
_GUESSED = {"type", "name", "data"}


def _place_model(content: dict[str, Any], model: str, path: Path) -> None:
    if not model:
        raise ConfigurationError("--model is empty; name a model, '.' for the current folder")
    _refuse_engine_as_model(model)
    engine = content["engine"]
    if is_server(model) and normalize(engine.get("type", SERVER)) == normalize(SERVER):
        engine["base_url"] = model
        return
    beside = parse_path(model)
    is_elsewhere = path.parent != Path() and beside.exists()
    content["model"] = {"path": str(beside.absolute()) if is_elsewhere else model}


def _refuse_engine_as_model(model: str) -> None:
    if "/" in model or parse_path(model).exists():
        return
    engines = {normalize(name): name for name in (*ENGINES.names(), *ENGINES.own)}
    meant = ENGINES.aliases.get(normalize(model), engines.get(normalize(model)))
    if meant is not None:
        raise ConfigurationError(
            f"--model {model} names an engine; write {name_engine_options(meant)} --model PATH, "
            "where PATH is the model"
        )


def _apply(content: dict[str, Any], setting: str) -> None:
    key, separator, text = setting.partition("=")
    if not key or not separator:
        raise ConfigurationError(f"--set {setting} is not KEY=VALUE; {_RULE}")
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text
    if "." in key:
        places, rest = _find_sections(content, key, setting)
    elif key in _TOP:
        places, rest = [content], [key]
    elif key in ("engine", "model"):
        raise ConfigurationError(f"--set {setting}: write --{key} {text}; {_RULE}")
    else:
        raise ConfigurationError(f"--set {setting} doesn't say where {key} belongs; {_RULE}")
    for place in places:
        options = place
        for name in rest[:-1]:
            inner: Any = options.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigurationError(f"--set {setting}: {name} holds no options")
            options = cast("dict[str, Any]", inner)
        options[rest[-1]] = value


def _find_sections(
    content: dict[str, Any], key: str, setting: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the mappings that a setting is for, and what of its key follows their name.

    A name may have dots in it.
    """
    sections = _map_sections(content)
    parts = key.split(".")
    for end in range(len(parts) - 1, 0, -1):
        section = ".".join(parts[:end])
        alike = (name for name in sections if normalize(name) == normalize(section))
        found = section if section in sections else next(alike, None)
        if found is not None:
            return [place.get("params") or place for place in sections[found]], parts[end:]
    raise ConfigurationError(
        f"--set {setting}: this run has no {parts[0]!r}{did_you_mean(parts[0], sections)} "
        f"(it has: {', '.join(sections)})"
    )


def _map_sections(content: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what settings can be for, by name.

    A name that several tests have, such as their type, is for all of them; the second of two tests
    that are called `x` is `x-2` too, as in the results.
    """
    sections: dict[str, list[dict[str, Any]]] = {
        name: [content[name]] for name in ("engine", "model")
    }
    for test in content["tests"]:
        paths = (test.get(option) for option in ("data", "tasks", "kind", "type"))
        stems = [PurePath(path).stem for path in paths if isinstance(path, str)]
        names = [test["name"], *stems] if isinstance(test.get("name"), str) else stems
        for name in dict.fromkeys(
            [*names, *(find_free_name(first, sections) for first in names[:1])]
        ):
            sections.setdefault(name, []).append(test)
    return sections
