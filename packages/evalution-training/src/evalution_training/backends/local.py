"""The backend `local`: a causal model of Transformers in this process."""

from __future__ import annotations

import gc
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_core.builtins import builtin_path
from evalution_training.backends import import_library
from evalution_training.models import NAME, to_evaluated_model

DType = Literal["auto", "float32", "float16", "bfloat16"]
Device = Literal["auto", "cpu", "cuda", "mps"]


class LocalConfig(BaseModel):
    """Settings for loading the model.

    `dtype`: of the weights; `auto` is as the checkpoint was saved. `device`: `auto` is an
    accelerator where there is one. `trust_remote_code`: run code that comes with the checkpoint,
    as the model's own field of that name allows too.
    """

    model_config = ConfigDict(extra="forbid")

    dtype: DType = "auto"
    device: Device = "auto"
    trust_remote_code: bool = False


class LocalBackend:
    """Loads model and tokenizer; `Transformers().attach(handles)` evaluates them.

    Handles: `model`, `tokenizer`, `model_name`, `device`, `run_dir`, `init_from_checkpoint`.
    Weights come from `load_checkpoint_path`, else `init_from_checkpoint`, else `name`, and from
    safetensors alone; the tokenizer from `tokenizer_path`, else `name`.
    """

    name: ClassVar[str] = "local"
    Config: ClassVar[type[BaseModel]] = LocalConfig

    def __init__(self, **params: Any) -> None:
        self._config = LocalConfig(**params)

    def prepare(self, *, model: dict[str, Any], run_dir: str) -> dict[str, Any]:
        """Load the model, in training mode as a loop expects it.

        Raises:
            EngineUnavailableError: torch or Transformers is missing, or the device.
            ConfigurationError: nothing that can be loaded is there.
        """
        torch, transformers = (
            import_library("torch", "local"),
            import_library("transformers", "local"),
        )
        config = self._config
        device = _find_device(torch, config.device)
        weights = to_evaluated_model(model)
        common: dict[str, Any] = {
            "trust_remote_code": config.trust_remote_code or weights.trust_remote_code,
            "revision": weights.revision,
        }
        dtype: Any = "auto" if config.dtype == "auto" else getattr(torch, config.dtype)
        try:
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                _source(weights.tokenizer_path or model[NAME]), **common, **weights.tokenizer_kwargs
            )
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                _source(str(weights.path)),
                **{"dtype": dtype, "use_safetensors": True, **common, **weights.model_kwargs},
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"backend 'local' can't load {weights.name}: {error}"
            ) from error
        return {
            "backend": "local",
            "model": loaded.to(device).train(),
            "tokenizer": tokenizer,
            "model_name": model[NAME],
            "device": device,
            "run_dir": run_dir,
            "init_from_checkpoint": model.get("init_from_checkpoint"),
        }

    def teardown(self, handles: dict[str, Any]) -> None:
        """Free the model, and empty the cache of its device."""
        for name in ("model", "tokenizer"):
            handles.pop(name, None)
        gc.collect()
        if handles["device"] != "cpu":
            import_library("torch", "local").get_device_module(handles["device"]).empty_cache()


def _source(name: str) -> str:
    return str(builtin_path(name, "safetensors")) if name.startswith("builtin:") else name


def _find_device(torch: Any, asked: Device) -> str:
    there: dict[str, bool] = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    names = [name for name, is_there in there.items() if is_there]
    if asked != "auto" and asked not in names:
        raise EngineUnavailableError(
            f"backend 'local' was asked for device {asked!r}, which torch {torch.__version__} "
            f"doesn't find here (there is: {', '.join(names)})"
        )
    return names[0] if asked == "auto" else asked
