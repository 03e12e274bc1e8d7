"""LoRA adapters on a loaded model, by upstream's integration of peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError
from evalution_transformers.forward import CausalModel
from evalution_transformers.upstream_loading import loading


def add_adapter(model: CausalModel, adapter: str) -> None:
    """Put the adapter of a folder or Hub id into the layers of `model`.

    Raises:
        ConfigurationError: it can't be loaded, or it is one of another model.
        EngineUnavailableError: peft is missing.
    """
    folder = Path(adapter)
    if folder.is_dir() and not (folder / "adapter_model.safetensors").is_file():
        raise ConfigurationError(
            f"the adapter {adapter!r} has no adapter_model.safetensors; its weights are read from "
            f"safetensors alone"
        )
    with loading("adapter", adapter, missing=f"adapter={adapter!r} needs peft; pip install peft"):
        report: Any = cast(Any, model).load_adapter(adapter)
        odd = _unmatched(model, adapter) if report is None else _reported(report)
    if odd:
        raise ConfigurationError(
            f"the adapter {adapter!r} is not one of this model: {len(odd)} of its weights have no "
            f"counterpart, {odd[0]} for one"
        )


def _reported(report: Any) -> list[str]:
    kinds = ("missing_keys", "unexpected_keys")
    return sorted(str(name) for kind in kinds for name in getattr(report, kind, None) or ())


def _unmatched(model: CausalModel, adapter: str) -> list[str]:
    """What `load_adapter` of Transformers 4 only warns of: weights that found no place."""
    import peft  # noqa: PLC0415 - not everyone has it

    weights: dict[str, Any] = cast(Any, peft).load_peft_weights(adapter, "cpu")
    own: dict[str, Any] = cast(Any, model).state_dict()
    placed = {name.replace(".default.", ".") for name in own}
    told = (name.removeprefix("base_model.model.") for name in weights)
    return sorted(name for name in told if ".lora_" in name and name not in placed)
