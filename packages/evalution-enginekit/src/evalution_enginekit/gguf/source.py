"""Find the file of a GGUF model: built in, on this machine, or on the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from evalution_core import ConfigurationError, Model
from evalution_core.builtins import PREFIX, builtin_path
from evalution_core.redaction import redact_text
from evalution_enginekit.gguf.file import GGUFFile, read_gguf
from evalution_enginekit.runtime import import_runtime

HUB = ">=0.34,<3"

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")
_SHOWN = 8


def read_model_file(model: Model, engine: str) -> GGUFFile:
    """Read the header of the model's file; of a split model, that of its first part.

    Its tensors are those of all parts; an `offset` counts within its own part.

    Raises:
        ConfigurationError: there is none, more than one could be meant, or it is damaged.
        EngineUnavailableError: it is on the Hub and huggingface_hub is not installed.
    """
    path = find_gguf(model, engine)
    first, *further = list_parts(path)
    file, others = read_gguf(first), [read_gguf(part, is_first=False) for part in further]
    if file.parts != 1 + len(others):
        raise ConfigurationError(
            f"{path} is one of {file.parts} parts of a model and was renamed: the others are found "
            f"by name, as in model-00001-of-{file.parts:05d}.gguf"
        )
    return replace(file, tensors=tuple(chain.from_iterable(f.tensors for f in (file, *others))))


def find_gguf(model: Model, engine: str) -> Path:
    """Return the local path of the model's file, or of its first part, downloaded if need be.

    `model.path` is `builtin:<name>`, a file, a folder with one model in it, `owner/repository:file`
    or `owner/repository` if that holds one model. Local files are preferred to the Hub.

    Raises:
        ConfigurationError: there is no such file, or more than one could be meant.
        EngineUnavailableError: it is on the Hub and huggingface_hub is not installed.
    """
    name = model.path
    if name is None:
        raise ConfigurationError(
            f"engine {engine} needs model.path: a .gguf file, a folder with one, builtin:tiny, or "
            "owner/repository:file.gguf on the Hugging Face Hub"
        )
    if name.startswith(PREFIX):
        return builtin_path(name, "gguf")
    path = Path(name).expanduser()
    if path.is_dir():
        return path / _choose_file(str(path), [file.name for file in sorted(path.glob("*.gguf"))])
    if path.is_file():
        return _find_first_part(path)
    repository, _, file = name.partition(":")
    if not _HUB_NAME.match(repository) or (file and not file.endswith(".gguf")) or _is_local(name):
        raise ConfigurationError(
            f"there is no file or folder {name!r}; engine {engine} loads a local .gguf file, a "
            "folder with one, builtin:tiny, or owner/repository:file.gguf from the Hugging Face Hub"
        )
    return _find_first_part(_download(repository, file, model.revision))


def list_parts(path: Path) -> list[Path]:
    """Return all files of the model whose first part is `path`; the file alone if it is whole."""
    return [path.with_name(name) for name in _list_part_names(path.name)]


def _is_local(name: str) -> bool:
    return name.startswith((".", "~", "/")) or (name.endswith(".gguf") and ":" not in name)


def _find_first_part(path: Path) -> Path:
    names = _list_part_names(path.name)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise ConfigurationError(
            f"{path} is a part of a model in {len(names)} files, and beside it "
            f"{_join_names(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    return path.with_name(names[0])


def _list_part_names(name: str) -> list[str]:
    match = _PART.search(name)
    if match is None:
        return [name]
    stem, count = name[: match.start()], int(match[2])
    return [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def _choose_file(place: str, names: Sequence[str]) -> str:
    """Return the only model among the names of a place; of a split one, the first part."""
    # A projector of images is beside the model that it serves and is no model itself.
    models = [name for name in names if not Path(name).name.startswith("mmproj")]
    firsts = sorted({_list_part_names(name)[0] for name in models})
    if not firsts:
        raise ConfigurationError(f"there is no .gguf file in {place}")
    if len(firsts) > 1:
        raise ConfigurationError(
            f"{place} holds {len(firsts)} GGUF models ({_join_names(firsts)}); name one of them"
        )
    return firsts[0]


def _join_names(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _download(repository: str, file: str, revision: str | None) -> Path:
    """Download a file of the Hub with all its parts, unless cached; return the first one's path."""
    hub: Any = import_runtime(
        "huggingface_hub", HUB, install='pip install "evalution-enginekit[hub]"'
    )
    try:
        if not file:
            file = _choose_file(
                f"{repository} on the Hub", _list_hub_files(hub, repository, revision)
            )
        parts = [
            Path(hub.hf_hub_download(repository, name, revision=revision))
            for name in _list_part_names(file)
        ]
    except ConfigurationError:
        raise
    except Exception as error:  # the border: its HTTP library's errors come as they are
        raise ConfigurationError(
            f"{repository}{':' + file if file else ''} could not be downloaded from the Hugging "
            "Face Hub and is not in its local cache: "
            f"{type(error).__name__}: {_first_line(error)}; check "
            "the name, the access and the network, or give a local .gguf file"
        ) from error
    return parts[0]


def _list_hub_files(hub: Any, repository: str, revision: str | None) -> list[str]:
    """Return the .gguf files of a repository; without a network, those of its cached snapshot."""
    try:
        found = hub.HfApi().list_repo_files(repository, revision=revision)
    except hub.errors.HfHubHTTPError:
        raise
    except Exception:  # noqa: BLE001 - the border: no network, by the HTTP library's own errors
        cached = hub.snapshot_download(
            repository, revision=revision, allow_patterns="*.gguf", local_files_only=True
        )
        root = Path(cached)
        found = [path.relative_to(root).as_posix() for path in root.rglob("*.gguf")]
    return sorted(name for name in found if name.endswith(".gguf"))


def _first_line(error: Exception) -> str:
    return redact_text(str(error)).strip().split("\n", 1)[0]
