"""Files of a model: where they are, their identity by content, and the weights that they lack."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from evalution_core import BaseEngine, ConfigurationError, Model
from evalution_core.builtins import PREFIX, builtin_path
from evalution_core.redaction import redact
from evalution_enginekit.tokenizer import find_cached_file, find_tokenizer_name

_DESCRIBING_FILES = (
    "config*.json", "generation_config.json", "hf_quant_config.json", "adapter_config.json",
    "params.json", "special_tokens_map.json", "added_tokens.json", "*tekken*.json", "emoji.json",
    "word_*.json", "byte_maps.json", "merges.txt", "dict.txt", "tokenizer*", "*vocab*",
    "*.tokenizer", "*.model", "*.tiktoken", "*.spm", "*.codes", "*.jinja", "*.py",
)  # fmt: skip
"""Files beside the weights that decide an answer: configuration, tokenizer, template, code.

The loaders of Transformers 5.23, ModelOpt and Mistral look for these names.
"""


def model_identity(model: Model, folder: Path, weights: Sequence[str]) -> dict[str, Any] | None:
    """Identify what answers for `model`, whose files are in `folder`: the SHA-256 of each, by name.

    `weights` are the glob patterns of the engine's weight files there; configuration and tokenizer
    files are taken without being named, also those of a `subfolder`. Files of a tokenizer that lies
    elsewhere are `tokenizer/<name>`, and what `list_identity_arguments` returns is there too.

    None where that isn't all that answers: no file matches `weights`, or the tokenizer is an object
    of the caller's, or comes from the Hub.
    """
    if not (model.tokenizer is None or isinstance(model.tokenizer, str)):
        return None
    inside = model.model_kwargs.get("subfolder") or ""
    if weights and not _match_files(folder / inside, weights):
        return None
    named, given = find_tokenizer_name(model), model.tokenizer_kwargs
    path = folder if named is None else Path(named).expanduser()
    if not path.exists():
        return None
    place = path if path.is_dir() else path.parent
    gguf = [Path(given["gguf_file"]).name] if "gguf_file" in given else []
    describing = (*_DESCRIBING_FILES, *gguf)
    parts = {"": _match_files(folder, (*weights, *describing))}
    if inside:
        parts[f"{inside}/"] = _match_files(folder / inside, (*weights, *describing))
    if named is not None:
        parts["tokenizer/"] = _match_files(place, describing) | {path} - {place}
    for inside in filter(None, ("additional_chat_templates", given.get("subfolder"))):
        parts[f"tokenizer/{inside}/"] = _match_files(place / inside, describing)
    identity: dict[str, Any] = {}
    for prefix, files in parts.items():
        identity |= {prefix + name: digest for name, digest in files_identity(files).items()}
    return identity | list_identity_arguments(model)


def checkpoint_identity(
    model: Model, folder: Path | None, weights: Sequence[str], revision: str | None
) -> dict[str, Any] | None:
    """As `model_identity`; of a model without a folder, the repository and its commit `revision`.

    By default it is the commit that the loader has put into the Hub's cache. None also where that
    isn't known, or where its tokenizer comes from elsewhere.
    """
    if folder is not None:
        identity = model_identity(model, folder, weights)
    elif (
        model.tokenizer is not None
        or model.tokenizer_path is not None
        or (revision := revision or _find_cached_commit(model)) is None
    ):
        return None
    else:
        identity = {"repository": model.path, "revision": revision}
        identity |= list_identity_arguments(model)
    if identity is not None and model.model_kwargs:
        identity["model_kwargs"] = redact(to_plain(model.model_kwargs))
    return identity


def to_plain(value: Any) -> Any:
    """Return arguments with the content of each configuration object in its place."""
    if isinstance(value, Mapping):
        members = cast("Mapping[Any, Any]", value)
        return {key: to_plain(member) for key, member in members.items()}
    kind = type(cast("object", value))
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device"):
        return str(value)
    to_dict: Any = getattr(value, "to_dict", None)
    return to_plain(to_dict()) if callable(to_dict) else value


def _find_cached_commit(model: Model) -> str | None:
    given = model.model_kwargs
    file = Path(given.get("subfolder", ""), given.get("gguf_file", "config.json"))
    found = find_cached_file(
        str(model.path), file.as_posix(), model.revision, given.get("cache_dir")
    )
    return None if found is None else found.parents[len(file.parts) - 1].name


def read_commit_hash(config: object) -> str | None:
    """Return the Hub commit that a configuration of Transformers was read from.

    None for a configuration from a folder, and where Transformers doesn't keep it, as in 5.23.
    """
    commit: object = getattr(config, "_commit_hash", None)
    return None if commit is None else str(commit)


def list_identity_arguments(model: Model) -> dict[str, Any]:
    """`tokenizer_kwargs` and `chat_template_kwargs`, redacted, where the model has some."""
    given = {
        "tokenizer_kwargs": model.tokenizer_kwargs,
        "chat_template_kwargs": model.chat_template_kwargs,
    }
    return {name: redact(arguments) for name, arguments in given.items() if arguments}


def files_identity(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file of one folder, by name.

    A file of unchanged size and times, with the same number, is not read again.

    Raises:
        ValueError: the files are of several folders, where one name could stand for two.
    """
    files = sorted(set(files))
    if len(folders := {str(file.parent) for file in files}) > 1:
        raise ValueError(f"files of one folder have an identity by name, got {sorted(folders)}")
    known, keys = _read_cache(), {file: _describe_state(file) for file in files}
    if unknown := [file for file, key in keys.items() if key not in known]:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - seldom needed

        # A thread's digest leaves the interpreter to others: a large model has many files.
        with ThreadPoolExecutor(min(len(unknown), os.cpu_count() or 1)) as pool:
            digests = pool.map(_sha256, unknown)
            known |= {keys[file]: digest for file, digest in zip(unknown, digests, strict=True)}
        _write_cache(known)
    return {file.name: known[key] for file, key in keys.items()}


def _describe_state(file: Path) -> str:
    state = file.stat()  # `cp -p` and `rsync -t` keep size and modification time
    times = f"{state.st_mtime_ns}|{state.st_ctime_ns}"
    return f"{file.resolve()}|{state.st_size}|{times}|{state.st_ino}"


def _match_files(folder: Path, patterns: Iterable[str]) -> set[Path]:
    return {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "evalution" / "file-hashes.json"


def _read_cache() -> dict[str, str]:
    try:
        known = json.loads(_cache_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, str]", known) if isinstance(known, dict) else {}


def _write_cache(entries: dict[str, str]) -> None:
    file = _cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.part")
        partial.write_text(json.dumps(entries), "utf-8")
        partial.replace(file)
    except OSError:
        # a read-only home costs hashing again, nothing else
        return


def refuse_model_fields(engine: object, model: Model, remedies: Mapping[str, str]) -> None:
    """Refuse what would be ignored.

    Args:
        remedies: by the name of a field, what to do instead.

    Raises:
        ConfigurationError: one of these fields is set.
    """
    for name, remedy in remedies.items():
        if getattr(model, name):
            raise ConfigurationError(
                f"engine {type(engine).__name__} takes no model.{name}: {remedy}"
            )


def refuse_gguf_model_fields(engine: BaseEngine, model: Model, parameters: str) -> None:
    """The same for an engine that reads GGUF files; `parameters` is where those of it go."""
    remedies = {"model_kwargs": parameters}
    if model.tokenizer_path is None:
        remedies["tokenizer_kwargs"] = "a file's own tokenizer takes none; set tokenizer_path too"
    refuse_model_fields(engine, model, remedies)


_WANTED = "a folder with config.json and weights, a Hub id as in owner/name, or builtin:tiny"


def model_folder(path: str, wanted: str = _WANTED) -> Path | None:
    """The folder that `path` names, or that a builtin's checkpoint lies in; None: it is a Hub id.

    Raises:
        ConfigurationError: it can only be a folder, and there is none; the message says to give
            what is `wanted`.
    """
    if path.startswith(PREFIX):
        return builtin_path(path, "safetensors")
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        found = "is a file" if folder.exists() else "does not exist"
        raise ConfigurationError(f"model folder {path!r} {found}; give {wanted}")
    return None


def choose_window(
    asked: int | None,
    own: int | None,
    *,
    option: str = "max_model_len",
    limit: str = "the model's own",
    unlimited: int | None = None,
) -> int:
    """Return the tokens that a model is fed at most: those that were asked for, else its own.

    Args:
        asked: the engine's option; None takes the model's own window.
        own: the longest sequence that the model allows; None if it states none.
        option: the option's name in the message.
        limit: the name of the model's limit in the message; `own` follows it.
        unlimited: the window of a model that states none and of which none is asked.

    Raises:
        ConfigurationError: fewer than two tokens, which leave no room for a context and a token;
            more than the model's own; or neither is known.
    """
    window = asked if asked is not None else own if own is not None else unlimited
    if window is None:
        raise ConfigurationError(f"the model states no longest sequence; set {option}")
    if window < 2 or (own is not None and window > own):
        largest = "no limit of the model's" if own is None else f"{limit} {own}"
        raise ConfigurationError(f"{option}={window} must be between 2 and {largest}")
    return window


_STORED = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Floats of safetensors files."""


def find_checkpoint_dtype(config: Mapping[str, Any], folder: Path | None) -> str | None:
    """Return the precision of a checkpoint as Transformers finds it; None: it isn't known.

    That is what `config.json` declares, also for its text model, else what the weights are stored
    in.

    Args:
        config: the content of `config.json`.
        folder: where the weights are, as far as they are here.

    Raises:
        ConfigurationError: a file of weights is damaged, or a pointer to one.
    """
    text = cast("Mapping[str, Any]", config.get("text_config") or {})
    declared = (part.get(key) for part in (config, text) for key in ("dtype", "torch_dtype"))
    found = next((str(dtype).removeprefix("torch.") for dtype in declared if dtype), None)
    return found or (None if folder is None else _read_stored_dtype(folder))


def _read_stored_dtype(folder: Path) -> str | None:
    """Return the type of the first floats in a folder of safetensors files."""
    for file in sorted(folder.glob("*.safetensors")):
        entries = _read_header(file).values()
        types = (_STORED.get(str(entry.get("dtype"))) for entry in entries)
        if found := next(filter(None, types), None):
            return found
    return None


def _read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Read the description of the tensors in a safetensors file."""
    with file.open("rb") as stream:
        start, size = stream.read(8), file.stat().st_size
        length = int.from_bytes(start, "little")
        if start == b"version ":
            raise ConfigurationError(
                f"{file} is a pointer of Git LFS in place of the weights; fetch them with "
                "`git lfs pull` in that folder, or download the model again"
            )
        try:
            header: Any = json.loads(stream.read(length) if 8 + length <= size else b"")
        except (ValueError, RecursionError):
            header = None
    entries = cast("dict[str, Any]", header if isinstance(header, dict) else {"": None})
    if not all(isinstance(entry, dict) for entry in entries.values()):
        raise ConfigurationError(
            f"{file} is cut short or no safetensors file: it has {size:,} bytes and no header that "
            "can be read; copy it again"
        )
    return entries


_NUMBER = re.compile(r"\d+")
_NOT_BUILT = (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of Transformers over a configuration that it has no model for, or not all libraries."""


def check_complete(config: Any, folder: Path | None) -> None:
    """Refuse a folder of safetensors files that lacks weights of the causal model of `config`.

    Transformers builds that model, without memory for its weights. Nothing is refused where it has
    no model of the architecture that `config` names, or where names can't be compared.

    Args:
        config: a configuration of Transformers.
        folder: where the weights are; None for a Hub id.

    Raises:
        ConfigurationError: weights are missing; the message has some names.
    """
    stored = set[str]() if folder is None else read_weight_names(folder)
    if not stored:
        return
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except _NOT_BUILT:
        return
    if type(model).__name__ in (config.architectures or ()):
        optional = [re.compile(name) for name in model._keys_to_ignore_on_load_missing or ()]
        missing = find_missing_weights(model, stored)
        lacking = [name for name in missing if not any(key.search(name) for key in optional)]
        refuse_missing(str(folder), "a causal model", lacking)


def find_missing_weights(
    model: Any, stored: AbstractSet[str], exempt: tuple[str, ...] = ()
) -> list[str]:
    """Return names of parameters that a checkpoint has no values for.

    Checkpoints may hold a weight by another name, quantised, or joined with others. So where one
    has names that the model doesn't, a weight is missing only if another layer's is there by this
    name, and nothing unknown belongs to its module.

    Args:
        model: a module of torch; of tied parameters one has to be stored.
        stored: the names in the checkpoint.
        exempt: prefixes of parameters that aren't judged.
    """
    names: dict[int, set[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if not name.startswith(exempt):
            names.setdefault(id(weight), set()).add(name)
    known = {*model.state_dict(), *(name for aliases in names.values() for name in aliases)}
    unknown = {name for name in stored - known if not name.startswith(exempt)}
    modules = {name.rpartition(".")[0] for name in unknown}
    kinds = {_NUMBER.sub("#", name) for name in stored & known}

    def is_comparable(name: str) -> bool:
        return name.rpartition(".")[0] not in modules and _NUMBER.sub("#", name) in kinds

    return [
        min(aliases)
        for aliases in names.values()
        if not aliases & stored and (not unknown or any(map(is_comparable, aliases)))
    ]


def read_weight_names(folder: Path) -> set[str]:
    """Return the names of the weights in the safetensors files of a folder."""
    found = set[str]()
    for file in folder.glob("*.safetensors"):
        with import_module("safetensors").safe_open(file, "np") as opened:
            found.update(opened.keys())
    return found


def refuse_missing(path: str, model: str, names: Sequence[str]) -> None:
    """Raise `ConfigurationError` if weights of `model` are missing; the message has some names."""
    if names:
        shown = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
        raise ConfigurationError(
            f"the checkpoint {path!r} lacks {len(names)} weights of {model} ({shown}); its answers "
            f"would be those of random ones"
        )
