"""From a GGUF file to tinygrad's model, with refusals of what tinygrad would get wrong."""

# tinygrad leaves most of its functions without types, and doesn't mark what it exports.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tinygrad import Tensor, nn
from tinygrad.llm import gguf
from tinygrad.llm import model as upstream
from tinygrad.llm.model import Transformer

from evalution_core import ConfigurationError, Model
from evalution_enginekit import runtime_errors
from evalution_enginekit.gguf_file import GGUFFile
from evalution_enginekit.gguf_source import gguf_file_of
from evalution_tinygrad.attention import attention_of
from evalution_tinygrad.rotary import Rotary

ARCHITECTURES = ("deepseek2", "glm4moe", "llama", "olmoe", "qwen2", "qwen3", "qwen3moe")
"""Those of tinygrad's own list of models (`tinygrad.llm.cli`) whose layers are all attention, and
their closest kin."""
RECURRENT = ("qwen35", "qwen35moe")

WeightType = Literal["auto", "float32", "float16"]

_EXACT = ("F32", "BF16", "F64")
_UNUSED = ("rope_freqs.weight",)
_FREQ_BASE = 10000.0
"""What llama.cpp takes where a file doesn't say."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on its device; `weight_type` is what its matrices are held or unpacked in."""

    transformer: Transformer
    rotary: Rotary
    weight_type: str


def model_file(model: Model, engine: str) -> GGUFFile:
    """The header of the model's file, which tinygrad can run.

    Raises:
        ConfigurationError: it isn't there, is damaged, isn't GGUF, or is of a kind that tinygrad
            doesn't run or would run wrongly.
        EngineUnavailableError: it is on the Hub and huggingface_hub is not installed.
    """
    _refuse_checkpoint(model, engine)
    file = gguf_file_of(model, engine)
    name, architecture = file.path.name, file.architecture
    known = f"tinygrad runs {', '.join(ARCHITECTURES)}"
    if architecture in RECURRENT:
        raise ConfigurationError(
            f"{name} is a {architecture} model: tinygrad runs its recurrent layers for one token "
            f"of one sequence at a time, so neither batches nor shared prefixes; {known} here, and "
            "engine LlamaCpp runs this one"
        )
    if architecture not in ARCHITECTURES:
        raise ConfigurationError(
            f"{name} is a {architecture} model; {known}, and engine LlamaCpp more"
        )
    if architecture == "llama" and file.of_architecture("expert_count"):
        raise ConfigurationError(
            f"{name} is a mixture of experts whose router's weights tinygrad doesn't normalise: "
            "its numbers would be wrong; engine LlamaCpp runs it"
        )
    scaling = file.of_architecture("rope.scaling.type")
    if scaling not in (None, "none"):
        raise ConfigurationError(
            f"{name} scales its rotary embeddings ({scaling}), which tinygrad leaves out: its "
            "numbers would be wrong; engine LlamaCpp runs it"
        )
    return file


def window_of(file: GGUFFile, asked: int | None) -> int:
    """How many tokens the model is fed at most.

    Raises:
        ConfigurationError: what was asked for is no window, or beyond the model's own.
    """
    sizes = (file.context_length, file.of_architecture("attention.sliding_window"))
    # tinygrad looks at all tokens before: right as long as no window slides.
    own = min(size for size in sizes if size)
    limit = own if asked is None else asked
    if not 1 < limit <= own:
        raise ConfigurationError(
            f"max_model_len={limit} must be between 2 and the model's own {own}"
        )
    return limit


def load(file: GGUFFile, dtype: WeightType, device: str, *, realize: bool) -> Loaded:
    """Read the weights onto tinygrad's present device.

    Args:
        file: what `model_file` gave.
        dtype: what matrices are held in; `auto`: float32 on a CPU and where float16 says less than
            the file, else float16.
        device: tinygrad's name of the device.
        realize: unpack quantised blocks once; otherwise in each pass.

    Raises:
        ConfigurationError: the file holds weights that tinygrad's model has no use for.
        EngineRuntimeError: tinygrad failed to read it.
    """
    precise = device == "CPU" or file.weight_type in _EXACT
    exact = dtype == "float32" or (dtype == "auto" and precise)
    reading = _Reading(file.architecture, exact=exact)
    with runtime_errors(f"loading {file.path.name}"), _read_by(reading):
        transformer, _ = Transformer.from_gguf(str(file.path), realize=realize)
    used = {*nn.state.get_state_dict(transformer), *_UNUSED}
    if strange := sorted(name for name in reading.names - used if not reading.skips(name)):
        raise ConfigurationError(
            f"{file.path.name} holds weights that tinygrad's {file.architecture} model doesn't use "
            f"({', '.join(strange[:4])}{', …' if len(strange) > 4 else ''}): its numbers would be "
            "wrong; engine LlamaCpp may run it"
        )
    assert all(attention_of(block) is not None for block in transformer.blk)
    config = transformer.blk[0].config
    rotary = Rotary(config.rope_dim, config.rope_theta, reading.rope_factors)
    return Loaded(transformer, rotary, "float32" if exact else "float16")


def _refuse_checkpoint(model: Model, engine: str) -> None:
    folder = None if model.path is None else Path(model.path).expanduser()
    if folder is None or not (folder / "config.json").is_file() or any(folder.glob("*.gguf")):
        return
    raise ConfigurationError(
        f"{model.path!r} is a dense Hugging Face checkpoint, which tinygrad's model code doesn't "
        f"read: engine {engine} takes GGUF alone. Convert it (llama.cpp's convert_hf_to_gguf.py), "
        "name a GGUF of the model with this folder as tokenizer_path, or use engine Transformers"
    )


class _Reading:
    """Stands in for tinygrad's reader of GGUF files and notes what `from_gguf` throws away."""

    def __init__(self, architecture: str, *, exact: bool):
        self._architecture = architecture
        self._exact = exact
        self._layers = 0
        self.names: set[str] = set()
        self.rope_factors: list[float] | None = None

    def __call__(self, path: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        metadata, weights = gguf.gguf_load(path)
        heads = metadata[f"{self._architecture}.attention.head_count"]
        metadata.setdefault(f"{self._architecture}.attention.head_count_kv", heads)
        metadata.setdefault(f"{self._architecture}.rope.freq_base", _FREQ_BASE)
        self._layers = metadata[f"{self._architecture}.block_count"]
        self._layers -= metadata.get(f"{self._architecture}.nextn_predict_layers", 0)
        if "rope_freqs.weight" in weights:
            factors: Any = weights["rope_freqs.weight"].float().tolist()
            self.rope_factors = factors
        self.names = {self._renamed(name) for name in weights}
        return metadata, {name: self._held(weight) for name, weight in weights.items()}

    def skips(self, name: str) -> bool:
        """Whether a weight is of a layer that predicts tokens further ahead, and no part of it."""
        layer = name.split(".")[1] if name.startswith("blk.") else ""
        return layer.isdigit() and int(layer) >= self._layers

    def _held(self, weight: Tensor) -> Tensor:
        # Norms and biases stay as they are: they cost nothing.
        return weight.cast("float32" if self._exact or weight.ndim == 1 else "float16")

    def _renamed(self, name: str) -> str:
        """As `from_gguf` does it for this architecture."""
        if self._architecture == "glm4moe":
            return name.replace("post_attention_norm", "ffn_norm")
        return name


@contextmanager
def _read_by(reading: Callable[[Any], Any]) -> Generator[None]:
    """`Transformer.from_gguf` with a reader of ours and without its cast to float16.

    tinygrad 0.13 takes neither as an argument: the cast is off with HALF=0 in the environment,
    which is left alone.
    """
    module: Any = upstream
    own: Mapping[str, Any] = {name: getattr(module, name) for name in ("gguf_load", "getenv")}

    def getenv(key: str, default: Any = 0) -> Any:
        return 0 if key == "HALF" else own["getenv"](key, default)

    module.gguf_load, module.getenv = reading, getenv
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(module, name, value)
