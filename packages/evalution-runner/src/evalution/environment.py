"""The environment of a result: engine, tokenizer, software versions and scoring rules."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

from evalution.error_boundary import wrap_errors
from evalution.redaction import mask_text, mask_value
from evalution_core import BaseEngine, BaseInferenceSession, EvalutionError, TextCodec
from evalution_core.discovery import available
from evalution_core.plugins import UNREADABLE, list_entry_points, normalize

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def read_requirements(name: str, extras: Iterable[str] = ()) -> list[Requirement]:
    """Return the requirements of a distribution on this machine, with those of `extras`.

    Empty where the distribution isn't installed; a line in an obsolete form is left out.
    """
    # Every worker imports this module, and none asks for requirements.
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415

    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:
        return []
    found: list[Requirement] = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # an old package's own spelling
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.append(requirement)
    return found


_SECONDS = 10
_COMMIT = "# branch.oid "
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
"""Variables that a hook of another repository leaves in the environment."""


@cache
def find_commit(name: str) -> Mapping[str, Any] | None:
    """Return the commit of a distribution that was installed from a repository (PEP 610).

    For an editable one, `dirty` says whether its folder differs from the commit. None for one of
    an index or archive, without git, or outside of any repository. What it was when first asked is
    kept: the code that runs was imported then.
    """
    from urllib.request import url2pathname  # noqa: PLC0415 - as above

    try:
        text = distribution(name).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    try:
        origin: Any = json.loads(text or "{}")
        if "vcs_info" in origin:
            return {"commit": str(origin["vcs_info"]["commit_id"]), "dirty": False}
        if not origin.get("dir_info", {}).get("editable"):
            return None
        folder = Path(url2pathname(urlsplit(str(origin["url"])).path))
    except (ValueError, KeyError, AttributeError, TypeError):
        return None  # a file that doesn't follow PEP 610
    return _read_commit(folder)


def _read_commit(folder: Path) -> Mapping[str, Any] | None:
    # Neither a lock nor a monitor: reading must not disturb work in that folder.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "status"]
    options = ["--porcelain=v2", "--branch", "--no-ahead-behind", "--", "."]
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    try:
        done = subprocess.run(
            [*command, *options],
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    commit = next((line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT)), "")
    if not commit or commit.startswith("("):  # "(initial)": nothing was committed yet
        return None
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}


_NUMERIC = ("numpy", "torch", "jax", "transformers", "tokenizers", "safetensors", "accelerate")
"""Libraries that change numbers: recorded also where no package of ours asks for them."""


def read_software_versions(engine_distribution: str | None) -> dict[str, Any]:
    """Return Python, the platform, and the version of every distribution that took part in a run.

    These are the runner and the engine's package, what both require, what those of our own among
    them require in turn, packages whose suites were imported, and imported numeric libraries.
    `git` has the commit of those that were installed from a repository.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    roots = {"evalution-runner", *_find_suite_packages()}
    if engine_distribution is not None:
        roots.add(engine_distribution)
    names = {_normalize_name(name): name for name in _NUMERIC if name in sys.modules}
    path = tuple(sys.path)
    names |= _find_involved(frozenset(roots), path)
    commits: dict[str, Any] = {}
    for name in sorted(names.values(), key=str.casefold):
        if (installed := _find_version(name)) is None:
            continue
        found[name] = installed
        if (commit := find_commit(name)) is not None:
            commits[name] = dict(commit)
    return found | ({"git": commits} if commits else {})


def _find_version(name: str) -> str | None:
    """Return the version of a distribution; None where it isn't installed."""
    try:
        return _read_version(name, str(distribution(name).locate_file("")))
    except PackageNotFoundError:
        return None


@cache
def _read_version(name: str, folder: str) -> str:
    """Return the version of the distribution in that folder, once."""
    return version(name)


@cache
def _find_involved(roots: frozenset[str], path: tuple[str, ...]) -> dict[str, str]:
    """Return the distributions themselves, and all that they reach through ours, by name.

    `path` is `sys.path`, where their metadata is. Reading it takes longer than a small run.
    """
    found: dict[str, str] = {}
    waiting = [(root, frozenset[str](), True) for root in sorted(roots)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras, is_root = waiting.pop()
        if (_normalize_name(name), extras) in seen:
            continue
        seen.add((_normalize_name(name), extras))
        found.setdefault(_normalize_name(name), name)
        if is_root or _is_ours(name):
            waiting += [
                (needed.name, frozenset(needed.extras), False)
                for needed in read_requirements(name, sorted(extras))
            ]
    return found


def _find_suite_packages() -> set[str]:
    return {
        point.dist.name
        for point in list_entry_points("evalution.suites")
        if point.dist is not None and point.value.partition(":")[0].strip() in sys.modules
    }


def _is_ours(name: str) -> bool:
    return re.fullmatch(r"evalution([-_.].+)?", name) is not None


def _normalize_name(name: str) -> str:
    return normalize(name).replace(".", "")


PROBE = (
    "The quick brown fox can't jump 1234567 times,\n\n\tor so.  "
    "Grüße, 東京 и Москва! 🙂 def f(x): return x**2 # 3.14e-10"
)
"""Merges, contractions, digits, runs of blanks, several scripts, an emoji, code."""


@runtime_checkable
class _Template(Protocol):
    @property
    def source(self) -> str: ...


@runtime_checkable
class _WithVariables(Protocol):
    @property
    def variables(self) -> Mapping[str, Any]: ...


@runtime_checkable
class _DescribedElsewhere(Protocol):
    """A tokenizer in another process, where its record is made."""

    def make_record(self) -> dict[str, Any] | None: ...


def make_tokenizer_record(session: BaseInferenceSession) -> dict[str, Any] | None:
    """Return hashes that identify tokenizer and chat template; None if there is no access.

    `encoding` is the SHA-256 of the ids of a fixed text, so it compares across engines whatever
    files the tokenizer came from; `chat_template` that of the template's text, None without one, or
    of both texts where requests with tools have their own.
    `chat_template_kwargs` are the variables that the template is rendered with, if any; where some
    are redacted, `chat_template_kwargs_hash` identifies them. `chat_template_day` is today, where
    the template prints the date.
    Where the tokenizer fails, `error` says how: a record must not end the run.
    """
    try:
        with wrap_errors("the session's tokenizer"):
            tokenizer = session.tokenizer
            if isinstance(tokenizer, _DescribedElsewhere):
                return tokenizer.make_record()
            return None if tokenizer is None else _describe_tokenizer(tokenizer)
    except EvalutionError as error:
        return {"error": mask_text(str(error))}


def _describe_tokenizer(tokenizer: TextCodec) -> dict[str, Any]:
    kind: type[Any] = tokenizer.__class__
    found: dict[str, Any] = {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "encoding": _hash_text(json.dumps([int(token_id) for token_id in tokenizer.encode(PROBE)])),
        "leading_ids": list(tokenizer.leading_ids),
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
    }
    template = getattr(tokenizer, "chat_template", None)
    source = template.source if isinstance(template, _Template) else template
    with_tools = getattr(template, "source_with_tools", source)
    if with_tools != source:
        source = json.dumps([source, with_tools])
    # A template without a text is one that a server keeps to itself.
    found["chat_template"] = _hash_text(source) if isinstance(source, str) and source else None
    if isinstance(template, _WithVariables) and template.variables:
        found["chat_template_kwargs"] = shown = mask_value(template.variables)
        if shown != template.variables:
            exact = json.dumps(template.variables, sort_keys=True, default=repr)
            found["chat_template_kwargs_hash"] = _hash_text(exact)
    if (day := getattr(template, "day", None)) is not None:
        found["chat_template_day"] = day
    return found


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


SCORING_POLICY: dict[str, Any] = {
    "boundary": "joint: encode(context + continuation) cut at len(encode(context)); trailing "
    "whitespace of the context belongs to the continuation",
    "bos": "exactly one where the tokenizer adds one; never doubled",
    "empty_context": "conditioned on BOS, else EOS",
    "truncation": "context or prompt cut from the left and counted; a continuation never",
    "windows": "rolling: disjoint windows of max_model_len, each token scored once, BOS never",
    "arithmetic": "log-softmax in float32 or wider",
    "failed_samples": "count as wrong in accuracies, are left out of perplexities",
}


@runtime_checkable
class DeclaredElsewhere(Protocol):
    """An engine of another Python environment, which says what it is there."""

    @property
    def declared_origin(self) -> tuple[str, str | None, str | None]:
        """Name, distribution and version."""
        ...


def make_engine_record(
    engine: BaseEngine | None, session: BaseInferenceSession | None
) -> dict[str, Any]:
    """Return name, package, redacted options and capabilities; no session is touched."""
    if engine is None:
        kind = type(session)
        return {"name": None, "session": f"{kind.__module__}:{kind.__qualname__}", "options": {}}
    name, package, version = find_origin(engine)
    with wrap_errors(f"engine {type(engine).__name__}: options and capabilities"):
        options, capabilities = engine.to_dict(), sorted(engine.capabilities)
    return {
        "name": name,
        "distribution": package,
        "version": version,
        "options": options,
        "capabilities": capabilities,
        "execution": None,
        "identity": None,
        "tokenizer": None,
        "self_check": None,
    }


@runtime_checkable
class HoldsEngine(Protocol):
    """An engine that only runs another one, such as `Replicas`: it changes no number."""

    @property
    def inner(self) -> BaseEngine: ...


def find_answering_engine(engine: BaseEngine) -> BaseEngine:
    """Return the engine that gives the answers: `engine`, or the one that it runs."""
    while isinstance(engine, HoldsEngine):
        engine = engine.inner
    return engine


def read_answering_software(engine: BaseEngine | None) -> dict[str, str]:
    """Return versions of the engine that answers, its runtime, core and kit, as far as known."""
    if engine is None:
        return {}
    answering = find_answering_engine(engine)
    with wrap_errors("describe_runtime"):
        runtime = answering.describe_runtime() or {}
    found = {"engine": find_origin(answering)[2], "runtime": runtime.get("version")}
    found |= {name: _find_version(name) for name in ("evalution-core", "evalution-enginekit")}
    return {name: str(version) for name, version in found.items() if version is not None}


class Environment(NamedTuple):
    """The software of a run: all versions that took part, and those that answers depend on."""

    versions: dict[str, Any]
    software: dict[str, str]


@runtime_checkable
class AnswersElsewhere(Protocol):
    """A session that may answer from another Python environment."""

    @property
    def environment(self) -> Environment | None:
        """That environment; None for this program's own."""
        ...


def read_environment(
    engine: BaseEngine | None, session: BaseInferenceSession | None = None
) -> Environment:
    """Return the software of an engine, in the environment in which its session runs."""
    if isinstance(session, AnswersElsewhere) and session.environment is not None:
        return session.environment
    package = None if engine is None else find_origin(engine)[1]
    return Environment(read_software_versions(package), read_answering_software(engine))


def record_execution(record: dict[str, Any], session: BaseInferenceSession) -> None:
    """Record what is really in use; it may change while a session is open, so call it again."""
    with wrap_errors("describe_execution"):
        record["execution"] = mask_value(session.describe_execution())


def record_identity(record: dict[str, Any], session: BaseInferenceSession) -> None:
    """Record revision or file hashes, tokenizer, and capabilities of the session."""
    with wrap_errors("identity"):
        record["identity"] = mask_value(session.identity())
    record["tokenizer"] = make_tokenizer_record(session)
    with wrap_errors("capabilities"):
        record["capabilities"] = sorted(session.capabilities)


def find_origin(engine: BaseEngine) -> tuple[str, str | None, str | None]:
    """Return the name of an engine, its distribution, and the version of that."""
    if isinstance(engine, DeclaredElsewhere):
        return engine.declared_origin
    kind = type(engine)
    value = f"{kind.__module__}:{kind.__qualname__}"
    for entry in available():
        if entry.value == value:
            return entry.name, entry.distribution, entry.version
    package, _, rest = kind.__module__.partition(".")
    depth = len(rest.split(".")) if rest else 0
    try:
        file = Path(inspect.getfile(kind))
        folder = file.parents[depth + (file.name == "__init__.py")]
    except (OSError, TypeError, IndexError):  # a class of an interactive session
        return value, None, None
    # An editable install lists no files; its package is then found by its own name.
    for name in (*_find_owners(package, folder), package):
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        return value, found.name, found.version
    return value, None, None


@cache
def _find_owners(package: str, folder: Path) -> list[str]:
    """Return the distributions in `folder` that list files of the top-level `package` there.

    None are known where the files of any distribution are damaged.
    """
    try:
        return [
            found.name
            for found in distributions(path=[str(folder)])
            if any(file.parts[0] in {package, f"{package}.py"} for file in found.files or ())
        ]
    except UNREADABLE:
        return []
