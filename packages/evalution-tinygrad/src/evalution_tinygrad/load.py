"""Load a GGUF file into tinygrad's model: header, tokenizer and weights."""

# tinygrad leaves most of its functions without types, and doesn't mark what it exports.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinygrad import Tensor, nn
from tinygrad.llm import gguf
from tinygrad.llm import model as upstream
from tinygrad.llm.model import Transformer

from evalution_core import ConfigurationError, Model
from evalution_enginekit import Tokenizer, runtime_errors
from evalution_enginekit.gguf.file import GGUFFile, read_model_file
from evalution_enginekit.gguf.tokenizer import load_gguf_tokenizer
from evalution_enginekit.model_source import choose_window
from evalution_tinygrad.device import Placement
from evalution_tinygrad.hyperparameters import check_hyperparameters
from evalution_tinygrad.model import Rotary, find_attention
from evalution_tinygrad.options import TinygradOptions, WeightType

ARCHITECTURES = ("deepseek2", "glm4moe", "llama", "olmoe", "qwen2", "qwen3", "qwen3moe")
"""The models of tinygrad's own list (`tinygrad.llm.cli`) whose layers are all attention, and their
closest relatives."""
RECURRENT = ("qwen35", "qwen35moe")

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
"""Types that `ggml_data_to_tensor` of tinygrad 0.13 reads, except integers."""
_BEYOND_X86 = frozenset(("IQ3_XXS", "IQ4_XS", "MXFP4"))
"""Types that the assembler of tinygrad 0.13 fails to encode; MXFP4 ends the process."""
_UNUSED = ("rope_freqs.weight",)
_KV_HEADS = "attention.head_count_kv"
_FREQ_BASE = 10000.0
"""llama.cpp's default."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights on their device; `dtype` is the type of the matrices in memory or unpacked."""

    transformer: Transformer
    rotary: Rotary
    dtype: str


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device with its file, its tokenizer and its window."""

    file: GGUFFile
    tokenizer: Tokenizer
    weights: Weights
    max_model_len: int

    @property
    def dtype(self) -> str:
        """The arithmetic, float32 whatever the weights are, and what they were rounded to."""
        rounded = self.weights.dtype == "float16" and self.file.weight_type != "F16"
        return "float32, weights in float16" if rounded else "float32"


def load_model(options: TinygradOptions, model: Model, placement: Placement) -> LoadedModel:
    """Read the model's file and put its weights on the device.

    Raises:
        ConfigurationError: there is no such file, it is damaged, or tinygrad would not run it or
            would compute it wrongly.
        EngineUnavailableError: it is on the Hub and huggingface_hub is not installed.
    """
    file = read_file(model)
    check_weight_types(file, placement.target)
    max_model_len = choose_window(options.max_model_len, _find_own_window(file))
    tokenizer = load_gguf_tokenizer(model, file, ends_by_name=options.ends_by_name)
    with placement.activate():
        weights = read_weights(file, options.dtype, placement.device, realize=options.realize)
    return LoadedModel(file, tokenizer, weights, max_model_len)


def read_file(model: Model) -> GGUFFile:
    """Read the header of the model's file and refuse models that tinygrad doesn't run.

    Raises:
        ConfigurationError: it isn't there, is damaged, isn't GGUF, or is of a kind that tinygrad
            doesn't run or would compute wrongly.
        EngineUnavailableError: it is on the Hub and huggingface_hub is not installed.
    """
    _refuse_checkpoint(model)
    file = read_model_file(model, "Tinygrad")
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


def _find_own_window(file: GGUFFile) -> int:
    """Return how many tokens the model can be fed at most."""
    sizes = (file.context_length, file.hyperparameter("attention.sliding_window"))
    # tinygrad attends to all earlier tokens: right as long as no window slides.
    return min(size for size in sizes if size)


def read_weights(file: GGUFFile, dtype: WeightType, device: str, *, realize: bool) -> Weights:
    """Read the weights onto tinygrad's present device.

    Args:
        file: the header, as `read_file` returns it.
        dtype: type of the matrices in memory; `auto` means float32 on a CPU and for files that
            float16 can't represent, else float16.
        device: tinygrad's name of the device.
        realize: unpack quantised blocks once; otherwise in each pass.

    Raises:
        ConfigurationError: the file lacks weights that tinygrad's model needs, or holds some that
            it doesn't use.
        EngineRuntimeError: tinygrad failed to read it.
    """
    precise = device == "CPU" or file.weight_type in _EXACT
    exact = dtype == "float32" or (dtype == "auto" and precise)
    reader = _Reader(file.architecture, exact=exact)
    with runtime_errors(f"loading {file.path.name}"), _use_reader(reader):
        try:
            transformer, _ = Transformer.from_gguf(str(file.path), realize=realize)
        except UnicodeDecodeError:  # of the header, not of the weights
            raise
        except (KeyError, ValueError) as error:  # a weight isn't there, or has another shape
            raise ConfigurationError(
                f"the weights in {file.path.name} are not those of tinygrad's {file.architecture} "
                f"model ({error}): they are incomplete, or laid out in another way; convert the "
                "model again, or use engine LlamaCpp"
            ) from error
    used = {*nn.state.get_state_dict(transformer), *_UNUSED}
    if strange := sorted(name for name in reader.names - used if not reader.skips(name)):
        raise ConfigurationError(
            f"{file.path.name} holds weights that tinygrad's {file.architecture} model doesn't use "
            f"({', '.join(strange[:4])}{', …' if len(strange) > 4 else ''}): its numbers would be "
            "wrong; engine LlamaCpp may run it"
        )
    assert all(find_attention(block) is not None for block in transformer.blk)
    config = transformer.blk[0].config
    rotary = Rotary(config.rope_dim, config.rope_theta, reader.rope_factors)
    return Weights(transformer, rotary, "float32" if exact else "float16")


def _refuse_checkpoint(model: Model) -> None:
    folder = None if model.path is None else Path(model.path).expanduser()
    if folder is None or not (folder / "config.json").is_file() or any(folder.glob("*.gguf")):
        return
    raise ConfigurationError(
        f"{model.path!r} is a dense Hugging Face checkpoint, which tinygrad's model code doesn't "
        "read: engine Tinygrad takes GGUF alone. Convert it (llama.cpp's convert_hf_to_gguf.py), "
        "name a GGUF of the model with this folder as tokenizer_path, or use engine Transformers"
    )


class _Reader:
    """Replaces tinygrad's reader of GGUF files and records what `from_gguf` drops."""

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
        self.names = {self._rename(name) for name in weights}
        if self._architecture == "llama":
            for part, count in (("attn_q", heads), ("attn_k", metadata[f"llama.{_KV_HEADS}"])):
                weights |= _unpair_biases(weights, f".{part}.bias", count)
        return metadata, {name: self._cast(weight) for name, weight in weights.items()}

    def skips(self, name: str) -> bool:
        """Return whether a weight belongs to a layer that predicts tokens further ahead."""
        layer = name.split(".")[1] if name.startswith("blk.") else ""
        return layer.isdigit() and int(layer) >= self._layers

    def _cast(self, weight: Tensor) -> Tensor:
        # Norms and biases stay as they are: they cost nothing.
        return weight.cast("float32" if self._exact or weight.ndim == 1 else "float16")

    def _rename(self, name: str) -> str:
        """Rename a weight as `from_gguf` does for this architecture."""
        if self._architecture == "glm4moe":
            return name.replace("post_attention_norm", "ffn_norm")
        return name


def _unpair_biases(weights: Mapping[str, Tensor], ending: str, heads: int) -> dict[str, Tensor]:
    """Return biases in the order that `from_gguf` gives the rows of llama's matrices alone.

    llama.cpp rotates dimension 2i of a head with 2i + 1, and tinygrad i with i + d / 2.
    """
    return {
        name: weight.rearrange("(n h two) -> (n two h)", n=heads, two=2)
        for name, weight in weights.items()
        if name.endswith(ending)
    }


@contextmanager
def _use_reader(reader: Callable[[Any], Any]) -> Generator[None]:
    """Run `Transformer.from_gguf` with another reader and without its cast to float16.

    tinygrad 0.13 takes neither as an argument: the cast is off with HALF=0 in the environment,
    which isn't changed here.
    """
    module: Any = upstream
    own: Mapping[str, Any] = {name: getattr(module, name) for name in ("gguf_load", "getenv")}

    def getenv(key: str, default: Any = 0) -> Any:
        return 0 if key == "HALF" else own["getenv"](key, default)

    module.gguf_load, module.getenv = reader, getenv
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(module, name, value)
