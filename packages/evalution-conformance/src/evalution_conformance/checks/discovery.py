"""An engine as configuration: found by name, checked, shown, pickled; nothing is loaded."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pickle
import subprocess
import sys
from importlib.metadata import Distribution, version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import jsonschema
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from evalution_conformance.assertions import assert_refused
from evalution_conformance.subject import Subject, find_owners
from evalution_core import BaseEngine, Capability, ConfigurationError, load_engine
from evalution_core.discovery import available
from evalution_core.engine import CONTRACT_VERSION
from evalution_core.redaction import SECRET_FIELD

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_FRAMEWORKS = {"jax", "tensorflow", "torch", "transformers"}
_LIGHT = {
    "httpx",
    "huggingface-hub",
    "jinja2",
    "jsonschema",
    "numpy",
    "packaging",
    "pydantic",
    "pytest",
    "pyyaml",
    "safetensors",
    "tokenizers",
    "typing-extensions",
}
"""Requirements of a distribution that its adapter may import when it is loaded."""
_SECRET = "kept-secret-4711"
_LOAD = """
import importlib, importlib.util, json, sys
name, file = sys.argv[1:]
try:
    importlib.import_module(name)
except ModuleNotFoundError as error:
    if not name.startswith(error.name):
        raise
    spec = importlib.util.spec_from_file_location("adapter", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["adapter"] = module
    spec.loader.exec_module(module)
print(json.dumps(sorted({module.partition(".")[0] for module in sys.modules})))
"""
_VALUES: tuple[Any, ...] = ({"no": "option"}, True, "text", 0.5, [{"no": "option"}])
"""One of each JSON type; those that an option's schema refuses are of a wrong type."""


class DiscoveryChecks:
    def test_the_engine_is_found_by_its_name(self, subject: Subject) -> None:
        """Its entry point has the class's name, and leads to the class."""
        kind = type(subject.engine)
        path = f"{kind.__module__}:{kind.__qualname__}"
        assert load_engine(path) is kind, f"{path} doesn't lead to the class"
        for entry in available():
            if entry.value.partition(":")[0].partition(".")[0] != kind.__module__.partition(".")[0]:
                continue
            if entry.load() is kind:
                assert entry.name == kind.__name__ or entry.distribution is None, (
                    f"the entry point {entry.name!r} must have the class's name {kind.__name__!r}"
                )

    def test_loading_the_adapter_imports_no_runtime(self, subject: Subject) -> None:
        """Loading imports one adapter; the adapter imports its runtime in `build`."""
        kind = type(subject.engine)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, kind.__module__, inspect.getfile(kind)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=subject.timeout,
        )
        assert done.returncode == 0, f"{kind.__module__} can't be imported alone:\n{done.stderr}"
        loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
        heavy = _FRAMEWORKS | _list_runtimes(subject)
        found = sorted(
            package
            for package in loaded
            if package in heavy or heavy & set(map(canonicalize_name, find_owners(package)))
        )
        assert not found, f"importing {kind.__module__} loads {', '.join(found)}; import in build()"

    def test_an_unknown_option_is_refused_with_the_nearest_name(self, subject: Subject) -> None:
        """Unknown options fail with a `ConfigurationError` naming the nearest valid one."""
        kind = type(subject.engine)
        nearest = next(iter(_read_properties(kind)), "")
        wrong = f"{nearest}x" if nearest else "no_such_option"
        for construct in (
            lambda: dataclasses.replace(cast("Any", subject.engine), **{wrong: 1}),
            lambda: kind.from_options({**_list_given(subject), wrong: 1}),
        ):
            message = _read_refusal(construct, f"the unknown option {wrong!r}")
            assert repr(wrong) in message, f"the error must name the option: {message}"
            assert nearest in message, f"the error must suggest {nearest!r}: {message}"

    def test_an_ill_typed_option_is_refused(self, subject: Subject) -> None:
        """Options are validated by name and type when the engine is constructed; strictly."""
        kind, engine = type(subject.engine), cast("Any", subject.engine)
        for option in _read_properties(kind):
            for wrong in (value for value in _VALUES if not _admits(kind, option, value)):
                for construct in (
                    lambda o=option, v=wrong: dataclasses.replace(engine, **{o: v}),
                    lambda o=option, v=wrong: kind.from_options({**_list_given(subject), o: v}),
                ):
                    message = _read_refusal(construct, f"{option}={wrong!r}")
                    assert option in message, f"the error must name {option!r}: {message}"

    def test_options_survive_the_round_trip(self, subject: Subject) -> None:
        """`to_dict` gives all options as JSON-safe values, and they build the same engine."""
        shown = subject.engine.to_dict()
        assert set(shown) >= set(_read_properties(type(subject.engine))), (
            "to_dict() leaves out options"
        )
        given = _list_given(subject)
        again = type(subject.engine).from_options(json.loads(json.dumps(given)))
        kept = {name: value for name, value in again.to_dict().items() if name in given}
        assert kept == given, f"options changed on the way: {given} became {kept}"

    def test_the_options_have_a_json_schema(self, subject: Subject) -> None:
        """Every engine's options have a JSON schema."""
        schema = type(subject.engine).options_schema()
        jsonschema.Draft202012Validator.check_schema(json.loads(json.dumps(schema)))
        given = _list_given(subject)
        validator: Any = jsonschema.Draft202012Validator(schema)
        problems = validator.iter_errors(given)
        messages = [problem.message for problem in problems if problem.validator != "required"]
        assert not messages, f"the engine's own options don't fit its schema: {messages}"
        unknown = {**given, "no_such_option": 1}
        assert not validator.is_valid(unknown), (
            "the schema must refuse unknown options (additionalProperties: false)"
        )

    def test_secrets_are_redacted(self, subject: Subject) -> None:
        """A secret is absent from `repr`, `to_dict` and the schema; so are credentials in URLs."""
        url = f"https://user:{_SECRET}@host.invalid/v1"
        planted = dict.fromkeys(_list_secrets(subject), _SECRET)
        kind = type(subject.engine)
        for name in _read_properties(kind):
            if _admits(kind, name, url) and not _admits(kind, name, _VALUES[0]):
                planted.setdefault(name, url)
        for name, value in planted.items():
            try:
                engine = dataclasses.replace(cast(Any, subject.engine), **{name: value})
            except ConfigurationError:
                continue
            assert _SECRET not in json.dumps(engine.to_dict()), f"to_dict() shows {name}"
            assert value == url or _SECRET not in repr(engine), f"repr() shows {name}"

    def test_the_engine_pickles(self, subject: Subject) -> None:
        """An engine is picklable configuration: a process that gets it builds the same."""
        copy = pickle.loads(pickle.dumps(subject.engine))
        assert type(copy) is type(subject.engine), "unpickled, the engine is of another class"
        for option in dataclasses.fields(subject.engine):  # pyright: ignore[reportArgumentType]
            assert getattr(copy, option.name) == getattr(subject.engine, option.name), (
                f"the option {option.name!r} is lost in pickling"
            )

    def test_capabilities_and_limits_are_declared(self, subject: Subject) -> None:
        """`capabilities`, `contract`, `processes_limit` and `requests_limit` can be relied on."""
        engine = subject.engine
        assert isinstance(engine.capabilities, frozenset), "capabilities must be a frozenset"
        odd = [
            known
            for known in list[object](engine.capabilities)
            if not isinstance(known, Capability)
        ]
        assert not odd, f"capabilities holds what is no Capability: {odd}"
        assert engine.contract == CONTRACT_VERSION, f"written for contract {engine.contract}"
        for name, limit in (
            ("processes_limit", engine.processes_limit),
            ("requests_limit", engine.requests_limit),
        ):
            assert limit is None or (type(limit) is int and limit >= 1), (
                f"{name} must be None or at least 1, got {limit!r}"
            )

    def test_attaching_is_declared_or_refused(self, subject: Subject) -> None:
        """`attach` takes a mapping of handles; an engine that can't refuses it."""
        declared = Capability.ATTACH in subject.engine.capabilities
        wanted = "ConfigurationError for no handles" if declared else "UnsupportedRequestError"
        try:
            subject.engine.attach({}, subject.model)
        except Exception as error:  # noqa: BLE001 - which one it is, is the check
            found = type(error).__name__
        else:
            found = "nothing"
        assert wanted.startswith(found), f"attach({{}}) must raise {wanted}, but raised {found}"


def _read_properties(kind: type[BaseEngine]) -> dict[str, dict[str, Any]]:
    return kind.options_schema().get("properties", {})


def _list_given(subject: Subject) -> dict[str, Any]:
    """Return the engine's options without its secrets, which nothing shows."""
    secrets, shown = _list_secrets(subject), subject.engine.to_dict()
    return {name: value for name, value in shown.items() if name not in secrets}


def _list_secrets(subject: Subject) -> list[str]:
    return [
        option.name
        for option in dataclasses.fields(subject.engine)  # pyright: ignore[reportArgumentType]
        if option.metadata.get(SECRET_FIELD)
    ]


def _admits(kind: type[BaseEngine], option: str, value: object) -> bool:
    """Return True if the engine's schema admits this value of an option."""
    validator: Any = jsonschema.Draft202012Validator({**kind.options_schema(), "required": []})
    return validator.is_valid({option: value})


def _read_refusal(construct: Any, asked: str) -> str:
    return str(assert_refused(construct, ConfigurationError, asked))


def _list_runtimes(subject: Subject) -> set[str]:
    """Return the distribution's requirements beyond the light packages an adapter may import."""
    required = (subject.distribution.requires or []) if subject.distribution else []
    names: set[str] = {canonicalize_name(Requirement(line).name) for line in required}
    ours = {name for name in names if name == "evalution" or name.startswith("evalution-")}
    return names - ours - _LIGHT


class PackagingChecks:
    def test_the_range_of_core_is_compatible(self, subject: Subject) -> None:
        """The distribution requires evalution-core in a range, with both ends and no `==`."""
        for bounds in _list_core_ranges(subject):
            assert {part.operator for part in bounds} in ({">=", "<"}, {"~="}), (
                f"it requires evalution-core{bounds}; write a range as >=1.0,<2"
            )

    def test_the_range_of_core_includes_the_installed_one(self, subject: Subject) -> None:
        """The evalution-core that is checked with is one that the distribution allows."""
        installed = version("evalution-core")
        for bounds in _list_core_ranges(subject):
            assert bounds.contains(installed, prereleases=True), (
                f"it requires evalution-core{bounds}, and {installed} is installed: pip would "
                f"refuse the two together"
            )

    def test_the_package_is_typed(self, subject: Subject) -> None:
        """The package has a `py.typed`, so that type checkers read its annotations."""
        _require_distribution(subject)
        package = type(subject.engine).__module__.partition(".")[0]
        assert files(package).joinpath("py.typed").is_file(), f"{package} has no py.typed"

    def test_the_distribution_has_a_licence(self, subject: Subject) -> None:
        """The metadata names a licence."""
        found = _require_distribution(subject)
        keys = ("License-Expression", "License-File", "License")
        classifiers = found.metadata.get_all("Classifier") or []
        named = any(found.metadata.get_all(key) for key in keys)
        assert named or any(line.startswith("License ::") for line in classifiers), (
            f"the metadata of {found.name} names no licence"
        )


def _list_core_ranges(subject: Subject) -> list[SpecifierSet]:
    found = _require_distribution(subject)
    required = [Requirement(line) for line in found.requires or []]
    ranges = [r.specifier for r in required if canonicalize_name(r.name) == "evalution-core"]
    assert ranges, f"{found.name} doesn't require evalution-core"
    return ranges


def _require_distribution(subject: Subject) -> Distribution:
    if subject.distribution is None:
        pytest.skip(f"{type(subject.engine).__module__} comes from no installed distribution")
    return subject.distribution
