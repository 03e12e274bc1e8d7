"""Distance of a way of serving a model from a reference, position by position.

Importing this package imports nothing else, so that results are read without NumPy: each name is
imported when it is first asked for. Measuring and recording need NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evalution.hints import import_extra

if TYPE_CHECKING:
    from evalution.fidelity.measurement import FidelityOptions, measure_fidelity, read_text_suite
    from evalution.fidelity.recording import record_reference
    from evalution.fidelity.result import FidelityResult
    from evalution.fidelity.store import read_fidelity, write_fidelity
    from evalution.fidelity.wording import describe_result

__all__ = [
    "FidelityOptions",
    "FidelityResult",
    "describe_result",
    "measure_fidelity",
    "read_fidelity",
    "read_text_suite",
    "record_reference",
    "write_fidelity",
]
_MODULES = {
    "FidelityOptions": "measurement",
    "FidelityResult": "result",
    "describe_result": "wording",
    "measure_fidelity": "measurement",
    "read_fidelity": "store",
    "read_text_suite": "measurement",
    "record_reference": "recording",
    "write_fidelity": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] in ("measurement", "recording"):
        import_extra("numpy", "fidelity", "measuring fidelity", "numpy")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
