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
from evalution_enginekit.gguf.file import GGUFFile
from evalution_enginekit.gguf.source import gguf_file_of
from evalution_tinygrad.attention import attention_of
from evalution_tinygrad.hyperparameters import check_hyperparameters
from evalution_tinygrad.rotary import Rotary

ARCHITECTURES = ("deepseek2", "glm4moe", "llama", "olmoe", "qwen2", "qwen3", "qwen3moe")
"""Those of tinygrad's own list of models (`tinygrad.llm.cli`) whose layers are all attention, and
their closest kin."""
RECURRENT = ("qwen35", "qwen35moe")

WeightType = Literal["auto", "float32", "float16"]

_EXACT = ("F32", "BF16", "F64")
_READ = frozenset(
    [
        "F32",
        "F16",
        "BF16",
        "F64",
        "Q1_0",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ2_S",
        "IQ3_XXS",
        "IQ3_S",
        "IQ4_XS",
        "MXFP4",
    ]
)
"""What `ggml_data_to_tensor` of tinygrad 0.13 has, integers apart."""
_BEYOND_X86 = frozenset(("IQ3_XXS", "IQ4_XS", "MXFP4"))
"""What the assembler of tinygrad 0.13 fails to encode; MXFP4 ends the process."""
_UNUSED = ("rope_freqs.weight",)
_KV_HEADS = "attention.head_count_kv"
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
    check_hyperparameters(file)
    return file


def check_weight_types(file: GGUFFile, target: str) -> None:
    """Refuse a file with weights of a type that tinygrad doesn't read on `target`.

    Raises:
        ConfigurationError: it has such weights.
    """
    types = {tensor.type for tensor in file.tensors}
    if strange := sorted(types - _READ):
        raise ConfigurationError(
            f"{file.path.name} holds weights of type {', '.join(strange)}; tinygrad reads "
            f"{', '.join(sorted(_READ))}: take another quantisation of the model, or engine "
            "LlamaCpp"
        )
    if target.startswith("CPU:X86") and (beyond := sorted(types & _BEYOND_X86)):
        raise ConfigurationError(
            f"{file.path.name} holds weights of type {', '.join(beyond)}, which tinygrad's "
            "assembler for x86 CPUs can't unpack; use device='cpu:clangjit' (it needs clang), "
            "another quantisation of the model, or engine LlamaCpp"
        )


def read_window(file: GGUFFile) -> int:
    """Return how many tokens the model can be fed at most."""
    sizes = (file.context_length, file.of_architecture("attention.sliding_window"))
    # tinygrad looks at all tokens before: right as long as no window slides.
    return min(size for size in sizes if size)


def load(file: GGUFFile, dtype: WeightType, device: str, *, realize: bool) -> Loaded:
    """Read the weights onto tinygrad's present device.

    Args:
        file: what `model_file` gave.
        dtype: what matrices are held in; `auto`: float32 on a CPU and where float16 says less than
            the file, else float16.
        device: tinygrad's name of the device.
        realize: unpack quantised blocks once; otherwise in each pass.

    Raises:
        ConfigurationError: the file lacks weights that tinygrad's model needs, or holds some that
            it has no use for.
        EngineRuntimeError: tinygrad failed to read it.
    """
    precise = device == "CPU" or file.weight_type in _EXACT
    exact = dtype == "float32" or (dtype == "auto" and precise)
    reading = _Reading(file.architecture, exact=exact)
    with runtime_errors(f"loading {file.path.name}"), _read_by(reading):
        try:
            transformer, _ = Transformer.from_gguf(str(file.path), realize=realize)
        except UnicodeDecodeError:  # of the header, and no matter of the weights
            raise
        except (KeyError, ValueError) as error:  # a weight isn't there, or has another shape
            raise ConfigurationError(
                f"the weights in {file.path.name} are not those of tinygrad's {file.architecture} "
                f"model ({error}): they are incomplete, or laid out in another way; convert the "
                "model anew, or use engine LlamaCpp"
            ) from error
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
        metadata.setdefault(f"{self._architecture}.{_KV_HEADS}", heads)
        metadata.setdefault(f"{self._architecture}.rope.freq_base", _FREQ_BASE)
        self._layers = metadata[f"{self._architecture}.block_count"]
        self._layers -= metadata.get(f"{self._architecture}.nextn_predict_layers", 0)
        if "rope_freqs.weight" in weights:
            factors: Any = weights["rope_freqs.weight"].float().tolist()
            self.rope_factors = factors
        self.names = {self._renamed(name) for name in weights}
        if self._architecture == "llama":
            for part, count in (("attn_q", heads), ("attn_k", metadata[f"llama.{_KV_HEADS}"])):
                weights |= _unpaired(weights, f".{part}.bias", count)
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


def _unpaired(weights: Mapping[str, Tensor], ending: str, heads: int) -> dict[str, Tensor]:
    """Biases in the order in which `from_gguf` puts the rows of llama's matrices, but not them.

    llama.cpp turns dimension 2i of a head with 2i + 1, and tinygrad i with i + d / 2.
    """
    return {
        name: weight.rearrange("(n h two) -> (n two h)", n=heads, two=2)
        for name, weight in weights.items()
        if name.endswith(ending)
    }


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
