"""Engines of another Python environment, declared by that environment's own interpreter.

This program needn't have the engine's package. A child of the interpreter finds the engine by its
name, checks its options, and says what is known of it without a model; a session is a worker of
that interpreter. The two environments share no `sys.path`, only the version of Evalution.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import field, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

from evalution.doctor.child import Facts, ask_process
from evalution.error_boundary import wrap_errors
from evalution.redaction import register_secrets
from evalution.user_input import parse_path
from evalution.workers.process import PACKAGES, make_foreign_environment, read_versions
from evalution.workers.session import SupervisedSession, build_supervised
from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    EngineSpec,
    EngineUnavailableError,
    Model,
    UnknownEngineError,
    secret,
    speed_only,
)
from evalution_core.redaction import redact

_PATIENCE = 120
"""Seconds that an interpreter has to import an engine's package and check the options."""
_OLDEST = (3, 11)

# Any Python since 2.7 can run it. It prints a line of JSON, and runs the module of the arguments if
# its versions are those that follow there.
_BOOT = f"""
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json
module, wanted = sys.argv[1], sys.argv[2:]
found = {{"python": "%d.%d.%d" % sys.version_info[:3], "versions": [], "stage": None}}
if sys.version_info >= {_OLDEST}:
    from importlib.metadata import PackageNotFoundError, version
    for name in {PACKAGES}:
        try:
            found["versions"].append(version(name))
        except PackageNotFoundError:
            found["versions"].append(None)
is_ready = bool(module) and found["versions"] == wanted
if is_ready:
    found["stage"] = "the import of evalution"
print(json.dumps(found))
sys.stdout.flush()
if is_ready:
    import runpy
    runpy.run_module(module, run_name="__main__")
"""


def ask_interpreter(
    python: Path, module: str = "", question: Mapping[str, Any] | None = None
) -> Facts:
    """Return what a module of another environment found out, as `doctor.child.ask_process`.

    Without a module, only the interpreter and its versions of Evalution are checked.

    Raises:
        ConfigurationError: there is no such file, it is no Python, or one that is too old; or the
            environment has no Evalution, or another version of it.
    """
    if python.is_dir():
        raise ConfigurationError(
            f"python: {python} is a folder; name the interpreter in it, such as "
            f"{python / 'bin' / 'python'}"
        )
    try:
        command = [str(python), "-c", _BOOT, module, *read_versions()]
        found = ask_process(command, question or {}, _PATIENCE, make_foreign_environment())
    except OSError as error:
        raise ConfigurationError(
            f"python: {python} can't be run ({error.strerror}); name the interpreter of an "
            "environment, such as .venv/bin/python"
        ) from error
    if problem := _find_problem(python, found):
        raise ConfigurationError(f"python: {python} {problem}")
    return found


def run_command(python: Path, arguments: Sequence[str]) -> int:
    """Run `evalution` in another environment; return its exit code. Errors as `ask_interpreter`."""
    ask_interpreter(python)
    command = [str(python), "-P", "-m", "evalution", *arguments]
    return subprocess.run(command, env=make_foreign_environment(), check=False).returncode


def _find_problem(python: Path, found: Facts) -> str | None:
    if "python" not in found:
        return f"is no Python interpreter: {found['error']}"
    own = read_versions()
    theirs = found["versions"]
    wanted = " ".join(f"{name}=={its}" for name, its in zip(PACKAGES, own, strict=True))
    if not theirs:
        oldest = ".".join(map(str, _OLDEST))
        return f"is Python {found['python']}, and Evalution needs {oldest} or newer"
    if None in theirs:
        return f"has no Evalution; {python} -m pip install {wanted}"
    if theirs != own:
        both = " ".join(f"{name}=={its}" for name, its in zip(PACKAGES, theirs, strict=True))
        return f"has {both}, and this program {wanted}; {python} -m pip install {wanted}"
    return None


def declare_engine(name: str, options: Mapping[str, Any], *, python: str | Path) -> BaseEngine:
    """Return an engine of another environment, as an engine of this one.

    Its sessions run in a worker process of `python`. Its class has the name, the options and the
    capabilities that the engine has there.

    Args:
        name: as `load_engine`, in that environment.
        options: plain values, as in a spec.
        python: path of the environment's interpreter, such as `.venv-vllm/bin/python`.

    Raises:
        ConfigurationError: as `ask_interpreter`, or an option is wrong.
        UnknownEngineError: that environment has no such engine.
        EngineUnavailableError: the engine can't be imported there.
    """
    path = parse_path(str(python)).absolute()
    register_secrets(options)
    declared = _ask_engine(path, EngineSpec(name, options))
    made = _make_class(path, name, json.dumps(dict(options)), json.dumps(declared))
    return made(
        **{
            option: _choose_value(options, option, value, kind)
            for option, (value, kind) in declared["options"].items()
        }
    )


@cache
def _make_class(path: Path, name: str, options: str, facts: str) -> type[InterpreterEngine]:
    """Return the class of an engine; the same for the same engine, so that engines compare."""
    declared: Facts = json.loads(facts)
    module, _, qualified = declared["kind"].partition(":")
    made = make_dataclass(
        declared["name"],
        [(option, Any, _make_field(kind)) for option, (_, kind) in declared["options"].items()],
        bases=(InterpreterEngine,),
        namespace={
            "__module__": module,
            "__doc__": declared["doc"],
            "capabilities": frozenset(map(Capability, declared["capabilities"])),
            "declared": declared,
            "python": path,
            "spec": EngineSpec(name, json.loads(options)),
        },
        kw_only=True,
    )
    made.__qualname__ = qualified
    return cast("type[InterpreterEngine]", made)


def _make_field(kind: str) -> Any:
    match kind:
        case "secret":
            return secret()
        case "speed":
            return speed_only(default=None)
        case _:
            return field()


def _choose_value(options: Mapping[str, Any], name: str, declared: Any, kind: str) -> Any:
    """Return an option as the engine has it; as it was given where that came back redacted."""
    given = options.get(name)
    return given if kind == "secret" or redact(given) == declared else declared


def _ask_engine(python: Path, spec: EngineSpec, *, default_model: bool = False) -> Facts:
    question = {"name": spec.kind, "options": spec.params, "default_model": default_model}
    with wrap_errors(f"engine {spec.kind!r}", ConfigurationError):  # a value that JSON can't hold
        found = ask_interpreter(python, "evalution.workers.declaration", question)
    if "error" in found:
        raise EngineUnavailableError(f"{python}: engine {spec.kind!r}: {found['error']}")
    if "refusal" not in found:
        return found
    name, message = found["refusal"]
    for kind in (UnknownEngineError, EngineUnavailableError):
        if name == kind.__name__:
            raise kind(f"{python}: {message}")
    raise ConfigurationError(message)


class InterpreterEngine(BaseEngine):
    """An engine of another environment; see `declare_engine`, which makes a class for each."""

    declared: ClassVar[Facts]
    python: ClassVar[Path]
    spec: ClassVar[EngineSpec]
    is_out_of_process = True

    def build(self, model: Model) -> SupervisedSession:
        """Load `model` in a worker process of the interpreter; errors as `build_supervised`."""
        return build_supervised(self, model, elsewhere=(self.python, self.spec))

    def default_model(self) -> str | None:
        if not self.declared["has_default_model"]:
            return None
        return _ask_engine(self.python, self.spec, default_model=True)["default_model"]

    @property
    def declared_origin(self) -> tuple[str, str | None, str | None]:
        """Name, distribution and version of the engine in its environment."""
        name, package, version = self.declared["origin"]
        return name, package, version

    @property
    def processes_limit(self) -> int | None:
        return self.declared["processes_limit"]

    @property
    def requests_limit(self) -> int | None:
        return self.declared["requests_limit"]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "python": str(self.python)}
