"""The OpenVINO engine, as configuration; nothing is loaded before `build`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    EngineUnavailableError,
    Model,
    speed_only,
)
from evalution_enginekit import import_runtime

if TYPE_CHECKING:
    from evalution_transformers.session import TransformersSession

OPENVINO = ">=2026.0,<2027"
OPTIMUM_INTEL = ">=2.2,<3"
GENAI = ">=2026.0,<2027"
INSTALL = "pip install evalution-openvino"
INSTALL_GENAI = 'pip install "evalution-openvino[genai]"'

DType = Literal["auto", "float32", "float16", "bfloat16"]

OPENVINO_CAPABILITIES = frozenset(Capability) - {
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}


@dataclass(slots=True)
class OpenVINO(BaseEngine):
    """Decoder-only models on Intel hardware, exported before or on load.

    `model.path` is a folder of OpenVINO files, a Hugging Face checkpoint (exported to a folder that
    lives as long as the session), a Hub id of either, or `builtin:tiny`; `model.model_kwargs` go to
    `OVModelForCausalLM.from_pretrained`. Weights are never compressed unless they ask for it.

    Options:
        device: OpenVINO's name (`CPU`, `GPU`, `GPU.1`, `NPU`, `AUTO`, `AUTO:GPU,CPU`); None: `CPU`.
        dtype: precision of arithmetic and of the key-value cache; `auto`: the device's default,
            bfloat16 on many CPUs and float16 on GPUs. A device may take another: see
            `describe_execution`.
        ov_config: properties of OpenVINO that the model is compiled with.
        compile: only at load, as None and True say: what a model can do is tried on it then.
        dynamic_shapes: only True or None: causal models have no other.
        cache_dir: folder in which OpenVINO keeps what it compiled.
        max_model_len: tokens the model is fed at most; None: what its configuration says.
        batch_size: prompts completed side by side; None or `auto`: 16.
        pass_tokens: tokens of one scoring pass; None: 512.
        genai: continuous batching by openvino-genai; None: where it is installed.
        cache_size: gigabytes of its cache; None: by rows, window and a bound of one.
        max_num_batched_tokens, enable_prefix_caching: openvino-genai's; None: 512 and True.
    """

    device: str | None = None
    dtype: DType = "auto"
    ov_config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    compile: bool | None = speed_only(default=None)
    dynamic_shapes: bool | None = speed_only(default=None)
    cache_dir: str | None = speed_only(default=None)
    max_model_len: int | None = None
    batch_size: int | Literal["auto"] | None = speed_only(default=None)
    pass_tokens: int | None = speed_only(default=None)
    genai: bool | None = None
    cache_size: int | None = speed_only(default=None)
    max_num_batched_tokens: int | None = speed_only(default=None)
    enable_prefix_caching: bool | None = speed_only(default=None)

    capabilities = OPENVINO_CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Versions of OpenVINO and its companions, and the devices that `device` names here.

        Raises:
            EngineUnavailableError: a library is missing, or the device.
        """
        openvino_runtime()
        from evalution_openvino.devices import described_runtime  # noqa: PLC0415 - it imports openvino

        return described_runtime(self.device)

    def build(self, model: Model) -> TransformersSession:
        """Load the model, exporting it if need be, and compile it.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict each other.
            EngineUnavailableError: a library or the device is missing.
        """
        self._check()
        openvino_runtime()
        from evalution_openvino.building import build  # noqa: PLC0415 - it imports openvino

        return build(self, model)

    def _check(self) -> None:
        numbers = ("batch_size", "pass_tokens", "cache_size", "max_num_batched_tokens")
        for name in numbers:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ConfigurationError(f"{name}={value} must be at least 1")
        if self.compile is False:
            raise ConfigurationError(
                "compile=False: a session tries on the compiled model what it can do; leave it out"
            )
        if self.dynamic_shapes is False:
            raise ConfigurationError(
                "dynamic_shapes=False: Optimum Intel gives causal models dynamic shapes alone; "
                "leave it out"
            )
        knobs = ("cache_size", "max_num_batched_tokens", "enable_prefix_caching")
        given = [name for name in knobs if getattr(self, name) is not None]
        if given and self.genai is False:
            raise ConfigurationError(
                f"{', '.join(given)}: for openvino-genai alone, and genai=False keeps it off"
            )


def openvino_runtime() -> None:
    """Import OpenVINO and Optimum Intel.

    Raises:
        EngineUnavailableError: one is missing, out of range, or broken.
    """
    # nncf and Optimum's exporters use deprecated features of others as they are imported.
    # nncf's log takes the standard output of that moment for good.
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        import_runtime("openvino", OPENVINO, install=INSTALL)
        for module in ("optimum.intel.openvino", "optimum.exporters.openvino"):
            try:
                import_runtime(
                    module, OPTIMUM_INTEL, distributions=("optimum-intel",), install=INSTALL
                )
            except EngineUnavailableError as error:
                raise EngineUnavailableError(f"{error}{torchvision_hint(error)}") from error


def torchvision_hint(error: BaseException) -> str:
    """What to do about a torchvision that breaks all imports of Transformers; empty otherwise."""
    if "torchvision" not in str(error):
        return ""
    return (
        "; the torchvision that optimum-intel brings is built for another torch: pip uninstall "
        "torchvision (this engine doesn't need it)"
    )
