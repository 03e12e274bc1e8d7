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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import transformers
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from optimum.exporters.openvino import main_export
from optimum.intel.openvino import OVConfig, OVModelForCausalLM
from safetensors import SafetensorError

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_core.redaction import redact, scrub
from evalution_enginekit import Tokenizer, model_identity
from evalution_enginekit.model_source import model_folder, told_arguments
from evalution_enginekit.runtime import brief
from evalution_enginekit.tokenizer_files import checkpoint_tokenizer
from evalution_openvino.engine import torchvision_hint
from evalution_openvino.model_arguments import FILE, check_arguments, check_files
from evalution_transformers.loading import check_complete, declared_eos

_WEIGHTS = ("openvino_model.*", "*.safetensors", "*.safetensors.index.json", "*.bin")
_WANTED = (
    f"a folder with {FILE}, or with config.json and weights, a Hub id as in owner/name, or "
    "builtin:tiny"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """A model that isn't compiled yet, its tokenizer and where its OpenVINO files lie.

    `on_load`: they were made for this session, and go with the model. `identified` is what its
    files are by content; None where they or the tokenizer can't be told so.
    """

    model: Any
    tokenizer: Tokenizer
    folder: Path
    on_load: bool
    identified: dict[str, Any] | None


def load(model: Model, device: str, properties: Mapping[str, Any]) -> Exported:
    """Find or export OpenVINO files, and read them.

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
    tokenizer = checkpoint_tokenizer(model, folder)
    source = str(folder or model.path)
    # Tracing a model warns of each Python value that it keeps as a constant, and compressing its
    # weights shows progress where results are expected.
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        try:
            identified = _hub_identity(model) if folder is None else _file_identity(model, folder)
            ready = _is_exported(model, folder)
            export = None if ready else _export(source, model, identified)
            loaded = _read(source, export, model, device, properties)
        except ConfigurationError:
            raise
        except ImportError as error:
            raise EngineUnavailableError(
                f"loading {source!r} needs more: {scrub(str(error))}{torchvision_hint(error)}"
            ) from error
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RuntimeError,
            SafetensorError,
        ) as error:
            raise ConfigurationError(
                f"no causal model for OpenVINO could be loaded from {source!r}: {brief(error)}"
                f"{torchvision_hint(error)}"
            ) from error
    # With the model, not with the session: its weights are read from there as they are needed.
    loaded.evalution_export = export
    if folder is None:
        tokenizer.eos_ids |= declared_eos(loaded)  # pyright: ignore[reportAttributeAccessIssue]
    return Exported(loaded, tokenizer, Path(loaded.model_save_dir), export is not None, identified)


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


def _export(source: str, model: Model, identified: Mapping[str, Any] | None) -> _ExportFolder:
    """OpenVINO files of a checkpoint, in the precision of its weights.

    Models of one checkpoint that are in use at the same time share them.
    """
    subfolder = str(model.model_kwargs.get("subfolder", ""))
    # All other arguments matter only as the files are read.
    files = {name: each for name, each in (identified or {}).items() if name != "model_kwargs"}
    key = json.dumps([source, subfolder, model.trust_remote_code, files], sort_keys=True)
    with _exporting:
        found = _exports.get(key)
        if found is not None and identified is not None:
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
            # At once: the exception's own frames hold the folder as long as somebody holds it.
            export.remove()
            raise
        _exports[key] = export
        return export


def _check_weights(source: str, model: Model, subfolder: str) -> None:
    """Refuse a checkpoint that lacks weights, which the exporter's own loading doesn't tell.

    It is read a second time for that; what was read is let go before the export begins.
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


def _file_identity(model: Model, folder: Path) -> dict[str, Any] | None:
    subfolder = str(model.model_kwargs.get("subfolder", ""))
    return _with_arguments(model, model_identity(model, folder / subfolder, _WEIGHTS))


def _hub_identity(model: Model) -> dict[str, Any] | None:
    """The commit of a repository; None where the tokenizer comes from elsewhere."""
    config: Any = transformers.AutoConfig.from_pretrained(
        str(model.path), revision=model.revision, trust_remote_code=model.trust_remote_code
    )
    commit: Any = getattr(config, "_commit_hash", None)
    if commit is None or model.tokenizer is not None or model.tokenizer_path is not None:
        return None
    found = {"repository": model.path, "revision": str(commit), **told_arguments(model)}
    return _with_arguments(model, found)


def _with_arguments(model: Model, found: dict[str, Any] | None) -> dict[str, Any] | None:
    if found is not None and model.model_kwargs:
        arguments = {name: _plain(value) for name, value in model.model_kwargs.items()}
        found["model_kwargs"] = redact(arguments)
    return found


def _plain(value: Any) -> Any:
    told: Any = getattr(value, "to_dict", None)
    return told() if callable(told) else value
