"""OpenVINO files in memory: found, or exported first from a checkpoint."""

# Optimum Intel and parts of Hugging Face's libraries are without types.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import huggingface_hub
import transformers
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from optimum.exporters.openvino import main_export
from optimum.intel.openvino import OVConfig, OVModelForCausalLM

from evalution_core import ConfigurationError, Model
from evalution_enginekit import load_tokenizer
from evalution_enginekit.model_source import (
    checkpoint_identity,
    find_checkpoint_dtype,
    model_folder,
    read_commit_hash,
)
from evalution_enginekit.runtime import merge_arguments
from evalution_openvino.options import PRECISION_HINT, OpenVINOOptions
from evalution_openvino.runtime import make_compile_properties
from evalution_transformers.load import LoadedModel, check_complete, read_declared_eos
from evalution_transformers.runtime import loading_errors

FILE = "openvino_model.xml"
"""The graph of a model, where no other name is given."""
_OURS = {
    "revision": "it is model.revision",
    "trust_remote_code": "it is model.trust_remote_code",
    "device": "it is an option of the engine",
    "ov_config": "it is an option of the engine",
    "compile": "the engine does so",
    "export": "a folder without OpenVINO files is exported",
}
"""Arguments of the loader that `model_kwargs` may not hold, and the remedy."""
_TAKEN = (
    "cache_dir",
    "config",
    "file_name",
    "force_download",
    "generation_config",
    "load_in_8bit",
    "local_files_only",
    "quantization_config",
    "stateful",
    "subfolder",
    "token",
    "use_cache",
)
"""Arguments that the loader knows; it drops others without a word."""


def check_arguments(model: Model) -> None:
    """Refuse arguments that have another place, and those that the loader would drop.

    Raises:
        ConfigurationError: there is such an argument.
    """
    merge_arguments({"model.model_kwargs": model.model_kwargs}, refused=_OURS, taken=())
    unknown = sorted(set(model.model_kwargs) - set(_TAKEN))
    if unknown:
        raise ConfigurationError(
            f"model.model_kwargs: OVModelForCausalLM takes no {', '.join(unknown)}; it takes "
            f"{', '.join(_TAKEN)}"
        )


def check_files(model: Model, folder: Path) -> None:
    """Refuse a folder without a model; upstream's words for it point elsewhere.

    Raises:
        ConfigurationError: the folder, or what `model_kwargs` name in it, holds no model.
    """
    inside = folder / str(model.model_kwargs.get("subfolder", ""))
    if not inside.is_dir():
        raise ConfigurationError(
            f"model.model_kwargs subfolder={inside.name!r} isn't in {str(folder)!r}; leave it out, "
            f"or name a folder there"
        )
    file = inside / str(model.model_kwargs.get("file_name", FILE))
    if file.is_file():
        return
    if "file_name" in model.model_kwargs:
        raise ConfigurationError(
            f"model.model_kwargs file_name={file.name!r} isn't in {str(inside)!r}; leave it out to "
            f"take {FILE}, or to export a checkpoint"
        )
    if not (inside / "config.json").is_file():
        raise ConfigurationError(
            f"no model in {str(inside)!r}: neither {FILE} nor the config.json of a checkpoint"
        )


_WEIGHTS = ("openvino_model.*", "*.safetensors", "*.safetensors.index.json", "*.bin")
_WANTED = (
    f"a folder with {FILE}, or with config.json and weights, a Hub id as in owner/name, or "
    "builtin:tiny"
)


def load_model(
    model: Model, device: str, options: OpenVINOOptions
) -> tuple[LoadedModel, dict[str, Any]]:
    """Find or export OpenVINO files, and read them; return model and properties to compile it with.

    Its attribute `evalution_export` holds the folder of files that were made for it, if they were.

    Raises:
        ConfigurationError: nothing loadable is there, or `model_kwargs` hold an option's argument.
        EngineUnavailableError: an optional library is missing.
    """
    if model.path is None:
        raise ConfigurationError(
            "engine OpenVINO needs model.path: a folder, a Hub id, or builtin:tiny"
        )
    check_arguments(model)
    folder = model_folder(model.path, _WANTED)
    if folder is not None:
        check_files(model, folder)
    # The tokenizer first: if it is missing, no gigabytes are read in vain.
    tokenizer = load_tokenizer(model, folder)
    source = str(folder or model.path)
    # Tracing a model warns of each Python value that it keeps as a constant, and compressing its
    # weights shows progress where results are expected.
    with (
        warnings.catch_warnings(),
        redirect_stdout(sys.stderr),
        loading_errors("causal model for OpenVINO", source),
    ):
        warnings.simplefilter("ignore")
        config = _read_config(model, source)
        identity = checkpoint_identity(model, folder, _WEIGHTS, read_commit_hash(config))
        dtype = choose_dtype(options, config, folder)
        properties = make_compile_properties(device, options, dtype)
        export = None if _is_exported(model, folder) else _export(source, model, identity)
        loaded = _read(source, export, model, device, properties)
    # With the model, not with the session: its weights are read from there as they are needed.
    loaded.evalution_export = export
    if folder is None:
        tokenizer.eos_ids |= read_declared_eos(loaded)  # pyright: ignore[reportAttributeAccessIssue]
    return LoadedModel(loaded, tokenizer, identity), properties


def _read_config(model: Model, source: str) -> Any:
    return transformers.AutoConfig.from_pretrained(
        source,
        revision=model.revision,
        subfolder=str(model.model_kwargs.get("subfolder", "")),
        trust_remote_code=model.trust_remote_code,
    )


def choose_dtype(options: OpenVINOOptions, config: Any, folder: Path | None) -> str | None:
    """Return the precision to compile for; None: `ov_config` says it."""
    if options.dtype != "auto":
        return options.dtype
    if PRECISION_HINT in options.ov_config:
        return None
    found = find_checkpoint_dtype(config.to_dict(), folder)
    return found if found in ("float16", "bfloat16") else "float32"


def _is_exported(model: Model, folder: Path | None) -> bool:
    subfolder = str(model.model_kwargs.get("subfolder", ""))
    name = str(model.model_kwargs.get("file_name", FILE))
    if folder is not None:
        return (folder / subfolder / name).is_file()
    try:
        huggingface_hub.hf_hub_download(
            str(model.path), name, subfolder=subfolder or None, revision=model.revision
        )
    except (EntryNotFoundError, LocalEntryNotFoundError):
        return False
    return True


class _ExportFolder:
    """A folder that is removed with the last model that was read from it."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="evalution-openvino-")
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


_exports: weakref.WeakValueDictionary[str, _ExportFolder] = weakref.WeakValueDictionary()
_exporting = threading.Lock()


def _export(source: str, model: Model, identity: Mapping[str, Any] | None) -> _ExportFolder:
    """Export OpenVINO files of a checkpoint, in the precision of its weights.

    Models of one checkpoint that are in use at the same time share them.
    """
    subfolder = str(model.model_kwargs.get("subfolder", ""))
    # All other arguments matter only as the files are read.
    files = {name: each for name, each in (identity or {}).items() if name != "model_kwargs"}
    key = json.dumps([source, subfolder, model.trust_remote_code, files], sort_keys=True)
    with _exporting:
        found = _exports.get(key)
        if found is not None and identity is not None:
            return found
        export = _ExportFolder()
        try:
            _check_weights(source, model, subfolder)
            main_export(
                source,
                export.path,
                task="text-generation-with-past",
                revision=model.revision or "main",
                subfolder=subfolder,
                trust_remote_code=model.trust_remote_code,
                local_files_only=huggingface_hub.constants.HF_HUB_OFFLINE,
                # Left to itself, upstream rounds the weights of larger models to int8.
                ov_config=OVConfig(dtype="auto"),
            )
        except BaseException:
            # At once: the exception's own frames hold the folder for as long as it lives.
            export.remove()
            raise
        _exports[key] = export
        return export


def _check_weights(source: str, model: Model, subfolder: str) -> None:
    """Refuse a checkpoint that lacks weights, over which the exporter's own loading is silent.

    It is read a second time for that, and freed before the export begins.
    """
    found: Any = transformers.AutoModelForCausalLM.from_pretrained(
        source,
        dtype="auto",
        revision=model.revision or "main",
        subfolder=subfolder,
        trust_remote_code=model.trust_remote_code,
        output_loading_info=True,
    )
    _, report = found
    check_complete(source, report)


def _read(
    source: str,
    export: _ExportFolder | None,
    model: Model,
    device: str,
    properties: Mapping[str, Any],
) -> Any:
    arguments = dict(model.model_kwargs)
    if export is None:
        arguments["revision"] = model.revision
    else:
        arguments.pop("subfolder", None)
    return OVModelForCausalLM.from_pretrained(
        source if export is None else export.path,
        export=False,
        compile=False,
        device=device,
        ov_config=dict(properties),
        trust_remote_code=model.trust_remote_code,
        **arguments,
    )
