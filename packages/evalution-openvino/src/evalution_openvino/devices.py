"""OpenVINO's devices: their names, the hints they take, and what a compiled model says of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from evalution_core import EngineUnavailableError
from evalution_openvino.upstream import Core, Properties, openvino

_OVER_OTHERS = ("AUTO", "MULTI", "HETERO", "BATCH")
"""Names that aren't devices, but ways to use some."""
_HINTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_DTYPES = {hint: dtype for dtype, hint in _HINTS.items()}
_PRECISION = "INFERENCE_PRECISION_HINT"
_KV_PRECISION = "KV_CACHE_PRECISION"


@dataclass(frozen=True, slots=True)
class Execution:
    """What a compiled model really uses; None where its device doesn't tell."""

    device: str
    dtype: str | None
    kv_cache: str | None


def resolve_device(name: str | None) -> str:
    """OpenVINO's spelling of a device that is here, `CPU` for None.

    Raises:
        EngineUnavailableError: this machine or this build of OpenVINO lacks it.
    """
    device = (name or "CPU").upper()
    available = openvino.Core().available_devices
    missing = [part for part in _named(device) if not _is_there(part, available)]
    if missing:
        raise EngineUnavailableError(
            f"device={name!r} isn't there: OpenVINO {openvino.__version__} sees "
            f"{', '.join(available)}; say one of these, AUTO, or AUTO: and some of them. A GPU or "
            f"NPU shows once its driver is installed"
        )
    return device


def compile_properties(
    device: str, dtype: str, ov_config: Mapping[str, Any], cache_dir: str | None
) -> dict[str, Any]:
    """What to compile with; `ov_config` goes through as it is.

    float32 is asked of the key-value cache too, whose default is half as wide, and of layers with
    compressed weights, whose inputs a CPU otherwise rounds to int8.
    """
    config = dict(ov_config)
    if cache_dir is not None:
        config["CACHE_DIR"] = cache_dir
    if dtype == "auto":
        return config
    hints = {_PRECISION: _HINTS[dtype]}
    if dtype == "float32":
        hints |= {_KV_PRECISION: "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    core = openvino.Core()
    if not device.startswith(_OVER_OTHERS):
        return {**_taken(core, device, hints), **config}
    parts = _named(device) or core.available_devices
    each = {part: _taken(core, part, hints) for part in parts}
    return {"DEVICE_PROPERTIES": each, **config}


def execution_of(compiled: Properties) -> Execution:
    """Device and precisions, as the compiled model tells them."""
    devices = [str(device) for device in compiled.get_property("EXECUTION_DEVICES")]
    supported = compiled.get_property("SUPPORTED_PROPERTIES")
    told: Mapping[str, Any] = {}
    if _PRECISION in supported:
        told = {
            name: compiled.get_property(name)
            for name in (_PRECISION, _KV_PRECISION)
            if name in supported
        }
    elif "DEVICE_PROPERTIES" in supported:
        each = cast("Mapping[str, Mapping[str, Any]]", compiled.get_property("DEVICE_PROPERTIES"))
        told = next(iter(each.values()), told)
    return Execution(
        ", ".join(devices), _dtype(told.get(_PRECISION)), _dtype(told.get(_KV_PRECISION))
    )


def described_runtime(device: str | None) -> dict[str, Any]:
    """Versions and device, as `BaseEngine.describe_runtime` tells them; errors as there."""
    names = ("openvino", "optimum-intel", "openvino-genai", "transformers")
    return {
        "version": ", ".join(f"{name} {found}" for name in names if (found := _version(name))),
        "device": resolve_device(device),
    }


def _named(device: str) -> list[str]:
    """The devices in a name such as `AUTO:GPU,CPU`; none in `AUTO`, which takes what there is."""
    way, _, rest = device.partition(":")
    if way not in _OVER_OTHERS:
        return [device]
    parts = [part.partition("(")[0].strip() for part in rest.split(",")]
    return [part for part in parts if part and not part.startswith("-")]


def _is_there(name: str, available: Iterable[str]) -> bool:
    return any(found == name or found.startswith(f"{name}.") for found in available)


def _taken(core: Core, device: str, hints: Mapping[str, str]) -> dict[str, str]:
    """Those of the hints that the device knows."""
    supported = core.get_property(device, "SUPPORTED_PROPERTIES")
    return {name: value for name, value in hints.items() if name in supported}


def _dtype(told: Any) -> str | None:
    if told is None:
        return None
    name = str(told.get_type_name()) if isinstance(told, openvino.Type) else str(told)
    return _DTYPES.get(name, name)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
