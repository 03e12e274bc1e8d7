"""What `model_kwargs` may hold, and whether the files that they name are there."""

from __future__ import annotations

from pathlib import Path

from evalution_core import ConfigurationError, Model

FILE = "openvino_model.xml"
"""The graph of a model, where no other name is given."""
_OURS = {
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "device": "the engine's device",
    "ov_config": "the engine's ov_config",
    "compile": "the engine's compile",
    "export": "nothing: a folder without OpenVINO files is exported",
}
"""Arguments of the loader that have a place of their own."""
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
    moved = [name for name in _OURS if name in model.model_kwargs]
    if moved:
        places = ", ".join(f"{name} (set {_OURS[name]})" for name in moved)
        raise ConfigurationError(f"model.model_kwargs may not hold {places}")
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
