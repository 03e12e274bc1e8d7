"""A run as a YAML file: an engine, a model and tests.

The engine and each test are written as `type` with the options beside it, or as `kind` with the
options under `params`; a name alone takes the defaults. The section `backend` is read by the
package that brings training backends, found by the entry-point group `evalution.backends`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, cast

from evalution.error_boundary import wrap_errors
from evalution.hints import BACKEND_HINT, note_working_folder
from evalution.redaction import register_secrets
from evalution.rows.columns import choose_columns, names_column
from evalution.rows.hub import open_rows
from evalution.rows.local import BUILTIN
from evalution.runs.backend import BackendReader, ModelBackend, check_backend
from evalution.runs.options import FailurePolicy
from evalution.runs.preflight import EngineAndModel, parse_model
from evalution.suites.discovery import load_suite
from evalution.suites.judge import Judge
from evalution.suites.suite import SuiteDeclaration, resolve_path
from evalution.user_input import parse_path, path_errors
from evalution.yaml_spec.named_code import check_named_code
from evalution.yaml_spec.yaml_file import EXAMPLES, as_mapping, read_declaration, read_yaml
from evalution_core import BaseEngine, ConfigurationError, Model, load_engine
from evalution_core.builtins import builtin_path
from evalution_core.options import check_option_names, option_fields
from evalution_core.plugins import PluginRegistry, did_you_mean, nearest_name


def _check_reader(found: object, what: str) -> BackendReader:
    if not callable(found):
        raise ConfigurationError(f"{what} is no function, but {found!r}")
    return cast(BackendReader, found)


BACKENDS = PluginRegistry("evalution.backends", "reader of backends", _check_reader)
"""Packages that read the section `backend`; the runner knows none of their backends."""


def read_backend(
    name: str, options: Mapping[str, Any], model: object, folder: Path
) -> ModelBackend:
    """The backend of a spec in `folder` whose section `model` is `model`.

    Raises:
        ConfigurationError: nothing that brings backends is installed, more than one package does,
            or the backend, its options or the model are wrong.
        EngineUnavailableError: the backend's package can't be imported.
    """
    reader = _find_reader()
    with wrap_errors(f"backend {name!r} can't be made", ConfigurationError):
        return reader(name, options, model, folder)


def _find_reader() -> BackendReader:
    found = BACKENDS.entries()
    entries = [entry for entry in found if entry.distribution == BACKEND_HINT] or found
    if not entries:
        raise ConfigurationError(
            "the section 'backend' needs a package of training backends and none is installed; "
            f"pip install {BACKEND_HINT}"
        )
    if len(entries) > 1:
        sources = " and ".join(entry.source for entry in entries)
        raise ConfigurationError(
            f"the section 'backend' is read by {sources}; uninstall all of them but one"
        )
    return entries[0].load()


SECTIONS = (
    *("engine", "model", "tests", "backend", "against"),
    *("isolate", "on_error", "max_failures", "record_tokens"),
)
"""Sections that a spec may have."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A run that is declared in full; nothing of it is loaded.

    `against` is what a parity check holds the engine to; a run has none. With a `backend`, the
    engine attaches to the model that it prepares.
    """

    path: Path
    engine: BaseEngine
    model: Model
    tests: Sequence[SuiteDeclaration]
    against: EngineAndModel | None = None
    isolate: bool = False
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    backend: ModelBackend | None = None
    record_tokens: bool = False


def load_spec(source: str) -> Spec:
    """The spec in a file, or in an installed package (`builtin:tiny/quickstart`).

    Relative paths of rows and of a model start from the file's folder.

    Raises:
        ConfigurationError: the file isn't there or not valid YAML, a section is missing, unknown or
            of the wrong kind, or an option is wrong; the message begins with the file's name.
    """
    path = find_spec(source)
    found = read_yaml(path)
    try:
        return parse_spec(found, path)
    except ConfigurationError as error:
        error.args = (f"{path}: {error}",)
        raise


def load_measured_spec(source: str, *, has_against: bool = False) -> Spec:
    """The spec of a measurement, which builds its engines itself; errors as `load_spec`."""
    loaded = load_spec(source)
    if loaded.against is not None and not has_against:
        raise ConfigurationError(
            f"{source} has the section 'against', which is for `evalution parity`; leave it out"
        )
    if loaded.backend is not None:
        raise ConfigurationError(
            f"{source} has the section 'backend', which is for `evalution run`: a measurement "
            "would load other weights than that attaches; leave it out"
        )
    return loaded


def find_spec(source: str) -> Path:
    """Return the path of a spec.

    Raises:
        ConfigurationError: there is no such file.
    """
    if source.startswith(BUILTIN):
        name, _, kind = source.removeprefix(BUILTIN).partition("/")
        return builtin_path(BUILTIN + name, kind or "quickstart")
    path = parse_path(source)
    with path_errors(path):
        if path.is_dir():
            raise ConfigurationError(f"{path} is a folder; name the spec file in it")
        if not path.exists():
            raise ConfigurationError(f"there is no spec file {path}{_suggest_file(path)}")
    return path


def _suggest_file(path: Path) -> str:
    """The spec file beside `path` that may be meant. Endings don't count, as they are all alike."""
    beside = {file.stem: file for file in path.parent.glob("*.y*ml")}
    near = nearest_name(path.stem, beside, cutoff=0.6)
    return f"; did you mean {beside[near]}?" if near else ""


def parse_spec(found: object, path: Path) -> Spec:
    """The spec in a YAML document's value; errors as `load_spec`."""
    document = as_mapping(found, "a spec")
    for section in document:
        if section not in SECTIONS:
            raise ConfigurationError(
                f"there is no section {section!r}{did_you_mean(str(section), SECTIONS)} "
                f"(sections: {', '.join(SECTIONS)})"
            )
    for section in ("engine", "tests"):
        if document.get(section) is None:
            raise ConfigurationError(f"the section {section!r} is missing{EXAMPLES[section]}")
    if path.name:  # without a file, a person has typed it
        check_named_code(document)
    folder = path.resolve().parent if path.is_symlink() else path.parent
    engine = parse_engine(document["engine"], folder)
    backend = _parse_backend(document, folder)
    model = _parse_model(document.get("model"), folder) if backend is None else backend.model
    if backend is not None:
        check_backend(backend, engine)
    return Spec(
        path,
        engine,
        model,
        _parse_tests(document["tests"], folder),
        _parse_against(document.get("against"), model, folder),
        _parse_switch(document, "isolate"),
        FailurePolicy(document.get("on_error", "record"), document.get("max_failures")),
        backend,
        _parse_switch(document, "record_tokens"),
    )


def parse_engine(declared: object, base: Path | None = None) -> BaseEngine:
    """An engine from its name, or from either form of a spec.

    With `python` beside its name it is that of another environment; the path of the interpreter
    starts from `base`.

    Raises:
        ConfigurationError: no engine has the name, or an option is wrong.
        EngineUnavailableError: the engine's module is there and can't be imported.
    """
    python, declared = _take_python(declared)
    name, options = read_declaration(declared, "engine")
    if python is not None:
        from evalution.workers import declare_engine  # noqa: PLC0415 - most runs need no process

        _check_plain(options, "engine")
        return declare_engine(name, options, python=(base or Path()) / parse_path(python))
    with note_working_folder(name):
        engine = load_engine(name)
    _check_place(options, engine)
    _check_plain(options, "engine")
    register_secrets(options)
    with wrap_errors(f"engine {engine.__name__} can't be made", ConfigurationError):
        made = engine.from_options(options)
    register_secrets(made)
    return made


def _take_python(declared: object) -> tuple[str | None, object]:
    if isinstance(declared, str):
        return None, declared
    fields = dict(as_mapping(declared, "the engine"))
    if "python" not in fields:
        return None, fields
    python = fields.pop("python")
    if not isinstance(python, str) or not python:
        raise ConfigurationError(
            "python, beside an engine's type, must be the path of another environment's "
            f"interpreter, such as .venv-vllm/bin/python, got {python!r}"
        )
    return python, fields


def parse_test(declared: object, base: Path | None) -> SuiteDeclaration:
    """A suite from either form of a spec; errors as `parse_engine`."""
    name, options = read_declaration(declared, "test")
    suite = load_suite(name, base)
    _check_place(options, suite)
    _check_plain(options, "test")
    if options.get("judge") and "judge" in {option.name for option in option_fields(suite)}:
        options = {**options, "judge": parse_judge(options["judge"], base or Path())}
    with wrap_errors(f"suite {suite.__name__} can't be made", ConfigurationError):
        return suite.from_options(_add_columns(suite, options, base), base=base)


def _add_columns(
    suite: type[SuiteDeclaration], options: Mapping[str, Any], base: Path | None
) -> Mapping[str, Any]:
    """Return the options of a test, with columns of its rows for those that name one and lack."""
    needed = [option.name for option in option_fields(suite) if option.default is MISSING]
    missing = [name for name in needed if name not in options and names_column(name)]
    data = options.get("data")
    suite.check_names(options)
    if not missing or not isinstance(data, str):
        return options
    rows = open_rows(resolve_path(data, base))
    return {**options, **choose_columns(suite.__name__, missing, rows)}


def parse_judge(declared: object, base: Path) -> Judge:
    """A judge from the option of a test; errors as `parse_engine`."""
    fields = dict(as_mapping(declared, "the judge"))
    check_option_names(Judge, fields)
    if fields.get("engine") is None:
        raise ConfigurationError(f"the judge names no engine{EXAMPLES['engine']}")
    fields["engine"] = parse_engine(fields["engine"], base)
    fields["model"] = _parse_model(fields.get("model"), base)
    if isinstance(folder := fields.get("baseline_run"), str):
        fields["baseline_run"] = str(base / parse_path(folder))
    return Judge(**fields)


def _parse_tests(declared: object, base: Path) -> list[SuiteDeclaration]:
    if not isinstance(declared, list) or not declared:
        raise ConfigurationError(
            f"tests must be a list with at least one suite, got {declared!r}{EXAMPLES['tests']}"
        )
    tests: list[SuiteDeclaration] = []
    for number, test in enumerate(cast(list[object], declared), start=1):
        try:
            tests.append(parse_test(test, base))
        except ConfigurationError as error:
            error.args = (f"test {number}: {error}",)
            raise
    return tests


def _parse_model(declared: object, base: Path) -> Model:
    if declared is None:
        return Model()
    if isinstance(declared, str):
        declared = {"path": declared}
    model = parse_model(dict(as_mapping(declared, "the section 'model'")))
    if model.path is None or model.path.startswith(BUILTIN):
        return model
    # A Hub id looks like a relative path: only a file that is there, or `./`, settles it.
    beside = (base / parse_path(model.path)).absolute()
    with path_errors(beside):
        if beside.exists():
            return replace(model, path=str(beside))
    if model.path.startswith(("./", "../", "~")):
        raise ConfigurationError(f"there is no model folder or file {beside}")
    return model


def _parse_backend(document: Mapping[str, Any], folder: Path) -> ModelBackend | None:
    if document.get("backend") is None:
        return None
    for section in ("against", "isolate"):
        if document.get(section):
            raise ConfigurationError(
                f"the section {section!r} needs models that engines load; take out 'backend'"
            )
    name, options = read_declaration(document["backend"], "backend")
    _check_plain(options, "backend")
    return read_backend(name, options, document.get("model"), folder)


def _parse_against(declared: object, model: Model, base: Path) -> EngineAndModel | None:
    if declared is None:
        return None
    fields = dict(as_mapping(declared, "the section 'against'"))
    for name in fields:
        if name not in ("engine", "model"):
            raise ConfigurationError(
                f"the section 'against' has no {name!r}{did_you_mean(name, ('engine', 'model'))} "
                "(it holds an engine, and a model where that is another)"
            )
    if fields.get("engine") is None:
        raise ConfigurationError(f"the section 'against' names no engine{EXAMPLES['engine']}")
    other = _parse_model(fields["model"], base) if fields.get("model") is not None else model
    return EngineAndModel(parse_engine(fields["engine"], base), other)


def _parse_switch(document: Mapping[str, Any], section: str) -> bool:
    declared: object = document.get(section, False)
    if not isinstance(declared, bool):
        raise ConfigurationError(f"{section} must be true or false, got {declared!r}")
    return declared


def _check_place(
    options: Mapping[str, Any], kind: type[BaseEngine] | type[SuiteDeclaration]
) -> None:
    known = {option.name for option in option_fields(kind)}
    for name in options:
        if name in SECTIONS and name not in known:
            raise ConfigurationError(
                f"{kind.declared_as} {kind.__name__} has no option {name!r}; {name} stands at the "
                "top of a spec, beside engine and tests"
            )


def _check_plain(options: Mapping[str, Any], what: str) -> None:
    for name, value in options.items():
        if isinstance(value, date | bytes | set):
            kind = "a date" if isinstance(value, date) else "no plain value"
            raise ConfigurationError(
                f"option {name!r} of the {what} is {kind} to YAML ({value!s}); put it in quotes"
            )
