"""OpenVINO and its companions: versions, devices, and properties that models are compiled with."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from typing import Any, cast

from evalution_core import EngineUnavailableError
from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import describe_distribution
from evalution_openvino.options import PRECISION_HINT, OpenVINOOptions
from evalution_openvino.upstream import Core, GenaiRuntime, OpenVINORuntime, Properties

OPENVINO = ">=2026.0,<2027"
OPTIMUM_INTEL = ">=2.2,<3"
GENAI = ">=2026.0,<2027"
INSTALL = "pip install evalution-openvino"
INSTALL_GENAI = 'pip install "evalution-openvino[genai]"'

_OVER_OTHERS = ("AUTO", "MULTI", "HETERO", "BATCH")
"""Names that aren't devices, but ways to use some."""
_HINTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_ARITHMETICS = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}
"""Their names among a device's capabilities."""
_DTYPES = {hint: dtype for dtype, hint in _HINTS.items()}
_KV_PRECISION = "KV_CACHE_PRECISION"


def import_openvino() -> None:
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


def load_openvino() -> OpenVINORuntime:
    """Return the package `openvino`.

    Raises:
        EngineUnavailableError: it is missing, out of range, or broken.
    """
    return cast(OpenVINORuntime, import_runtime("openvino", OPENVINO, install=INSTALL))


def import_genai() -> GenaiRuntime:
    """Import openvino-genai.

    Raises:
        EngineUnavailableError: it is missing, out of range, or broken.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_runtime(
            "openvino_genai", GENAI, distributions=("openvino-genai",), install=INSTALL_GENAI
        )
    return cast(GenaiRuntime, module)


def torchvision_hint(error: BaseException) -> str:
    """Return the remedy for a torchvision that breaks all imports of Transformers, else nothing."""
    if "torchvision" not in str(error):
        return ""
    return (
        "; the torchvision that optimum-intel brings is built for another torch: pip uninstall "
        "torchvision (this engine doesn't need it)"
    )


def resolve_device(name: str | None) -> str:
    """Return OpenVINO's spelling of a device that is here, `CPU` for None.

    Raises:
        EngineUnavailableError: this machine or this build of OpenVINO lacks it.
    """
    openvino = load_openvino()
    device = (name or "CPU").upper()
    available = openvino.Core().available_devices
    missing = [part for part in _parse_devices(device) if not _is_there(part, available)]
    if missing:
        raise EngineUnavailableError(
            f"device={name!r} isn't there: OpenVINO {openvino.__version__} sees "
            f"{', '.join(available)}; say one of these, AUTO, or AUTO: and some of them. A GPU or "
            f"NPU shows once its driver is installed"
        )
    return device


def make_compile_properties(
    device: str, options: OpenVINOOptions, dtype: str | None
) -> dict[str, Any]:
    """Return the properties to compile with; `ov_config` goes through as it is, and last.

    `dtype` is also asked of the key-value cache, whose default is narrower, and layers with
    compressed weights, whose inputs a CPU otherwise rounds to int8, keep their inputs. A device
    that has no arithmetic of that type, for which OpenVINO might take a narrower one, computes in
    float32. None leaves the precision to the device, or to `ov_config`.
    """
    config = dict(options.ov_config)
    if options.cache_dir is not None:
        config["CACHE_DIR"] = options.cache_dir
    if dtype is None:
        return config
    core = load_openvino().Core()
    if not device.startswith(_OVER_OTHERS):
        return {**make_hints(core, device, dtype), **config}
    parts = _parse_devices(device) or core.available_devices
    return {"DEVICE_PROPERTIES": {part: make_hints(core, part, dtype) for part in parts}, **config}


def read_execution(compiled: Properties) -> dict[str, str | None]:
    """Return the device and precisions that a compiled model reports; None where it doesn't say."""
    devices = [str(device) for device in compiled.get_property("EXECUTION_DEVICES")]
    supported = compiled.get_property("SUPPORTED_PROPERTIES")
    found: Mapping[str, Any] = {}
    if PRECISION_HINT in supported:
        names = [name for name in (PRECISION_HINT, _KV_PRECISION) if name in supported]
        found = {name: compiled.get_property(name) for name in names}
    elif "DEVICE_PROPERTIES" in supported:
        each = cast("Mapping[str, Mapping[str, Any]]", compiled.get_property("DEVICE_PROPERTIES"))
        found = next(iter(each.values()), found)
    return {
        "device": ", ".join(devices),
        "dtype": _to_dtype(found.get(PRECISION_HINT)),
        "kv_cache_dtype": _to_dtype(found.get(_KV_PRECISION)),
    }


def describe_runtime(device: str | None) -> dict[str, Any]:
    """Return the versions of OpenVINO and its companions, and the devices that `device` names.

    Raises:
        EngineUnavailableError: a library is missing, or the device.
    """
    import_openvino()
    genai = ["openvino-genai"] if find_spec("openvino_genai") else []
    return {
        "version": ", ".join(
            map(describe_distribution, ["openvino", "optimum-intel", *genai, "transformers"])
        ),
        "device": resolve_device(device),
    }


def _parse_devices(device: str) -> list[str]:
    """Return the devices in a name such as `AUTO:GPU,CPU`; none in `AUTO`, which takes any."""
    way, _, rest = device.partition(":")
    if way not in _OVER_OTHERS:
        return [device]
    parts = [part.partition("(")[0].strip() for part in rest.split(",")]
    return [part for part in parts if part and not part.startswith("-")]


def _is_there(name: str, available: Iterable[str]) -> bool:
    return any(found == name or found.startswith(f"{name}.") for found in available)


def make_hints(core: Core, device: str, dtype: str) -> dict[str, str]:
    """Return those hints for a precision that the device knows."""
    hint = _HINTS[dtype]
    if _ARITHMETICS[hint] not in core.get_property(device, "OPTIMIZATION_CAPABILITIES"):
        hint = _HINTS["float32"]
    hints = {PRECISION_HINT: hint, _KV_PRECISION: hint, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    supported = core.get_property(device, "SUPPORTED_PROPERTIES")
    return {name: value for name, value in hints.items() if name in supported}


def _to_dtype(found: Any) -> str | None:
    if found is None:
        return None
    is_type = isinstance(found, load_openvino().Type)
    name = str(found.get_type_name()) if is_type else str(found)
    return _DTYPES.get(name, name)
