"""The parts of OpenVINO and openvino-genai that are used here, as Protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


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

    def get_ops(self) -> Sequence[Any]: ...
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


class Handle(Protocol):
    """`openvino_genai.GenerationHandle`."""

    def can_read(self) -> bool: ...
    def read(self) -> Mapping[int, Any]: ...
    def get_status(self) -> Any: ...
    def cancel(self) -> None: ...


class Pipeline(Protocol):
    """`openvino_genai.ContinuousBatchingPipeline`."""

    def add_request(self, request_id: int, input_ids: Any, generation_config: Any) -> Handle: ...
    def step(self) -> None: ...


class GenaiRuntime(Protocol):
    """The package `openvino_genai`."""

    SchedulerConfig: Callable[[], Any]
    GenerationConfig: Callable[[], Any]
    GenerationFinishReason: Any
    GenerationStatus: Any
    ContinuousBatchingPipeline: Callable[..., Pipeline]
