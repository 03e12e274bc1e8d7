"""The parts of OpenVINO that are used here, as types; a check of types doesn't need it then."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import openvino as _openvino
from openvino import opset13 as _opset13


class Tensor(Protocol):
    """`openvino.Tensor`; `data` is a view of its memory, as an array of numpy."""

    data: Any
    shape: Sequence[int]
    element_type: Any

    def copy_to(self, target: Tensor) -> None: ...


class Variable(Protocol):
    """`openvino.VariableState`."""

    state: Tensor


class Request(Protocol):
    """`openvino.InferRequest`."""

    def infer(self, inputs: Mapping[str, Any]) -> object: ...
    def wait(self) -> None: ...
    def reset_state(self) -> None: ...
    def query_state(self) -> Sequence[Variable]: ...
    def get_tensor(self, name: str) -> Tensor: ...


class Port(Protocol):
    """`openvino.Output`, of a compiled model or of a graph's node."""

    def get_names(self) -> set[str]: ...


class Properties(Protocol):
    """The part of a compiled model that says how it runs."""

    def get_property(self, property: str) -> Any: ...


class Compiled(Properties, Protocol):
    """`openvino.CompiledModel`."""

    inputs: Sequence[Port]

    def create_infer_request(self) -> Request: ...


class Graph(Protocol):
    """`openvino.Model`."""

    inputs: Sequence[Port]

    def get_variables(self) -> Sequence[Any]: ...
    def output(self, name: str) -> Any: ...
    def add_parameters(self, parameters: Sequence[Any]) -> None: ...
    def validate_nodes_and_infer_types(self) -> None: ...


class Core(Protocol):
    """`openvino.Core`."""

    available_devices: Sequence[str]

    def get_property(self, device: str, property: str) -> Any: ...


class OpenVINORuntime(Protocol):
    """The package `openvino`."""

    __version__: str
    Core: Callable[[], Core]
    Tensor: Callable[..., Tensor]
    Type: Any


openvino = cast(OpenVINORuntime, _openvino)
opset13: Any = _opset13
"""The operations of a graph; decorators make them, and leave them without types."""
