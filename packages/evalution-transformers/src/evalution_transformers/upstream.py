"""The parts of Transformers that are used here and that it leaves without types, as Protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class CausalModel(Protocol):
    """The part of `PreTrainedModel` that scoring and generation use."""

    config: Any
    generation_config: Any

    @property
    def base_model(self) -> torch.nn.Module: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def __call__(self, *, input_ids: Tensor, **inputs: Any) -> Any: ...
    def forward(self, *args: Any, **inputs: Any) -> Any: ...
    def generate(self, **inputs: Any) -> Any: ...
    def get_output_embeddings(self) -> torch.nn.Module | None: ...


class LoadableModel(CausalModel, Protocol):
    """The part of `PreTrainedModel`, a `torch.nn.Module`, that loading uses."""

    def requires_grad_(self, requires_grad: bool = True) -> LoadableModel: ...
    def eval(self) -> LoadableModel: ...
    def float(self) -> LoadableModel: ...
    def to(self, device: torch.device) -> LoadableModel: ...
    def state_dict(self) -> Mapping[str, Tensor]: ...
    def load_adapter(self, peft_model_id: str) -> object: ...


class RequestResult(Protocol):
    """`GenerationOutput` of continuous batching: all tokens of a request so far."""

    request_id: str
    generated_tokens: Sequence[int]
    error: str | None

    def is_finished(self) -> bool: ...


class BackgroundStatus(Protocol):
    """The state of the manager's thread; `fatal_error` is what ended it."""

    fatal_error: BaseException | None


class Manager(Protocol):
    """`ContinuousBatchingManager`, as `init_continuous_batching` of a model makes it."""

    background_thread_status: BackgroundStatus

    def start(self) -> None: ...
    def is_running(self) -> bool: ...
    def pause(self) -> AbstractContextManager[object]: ...
    def stop(self, *, block: bool, timeout: float, hard_stop: bool) -> None: ...
    def destroy(self) -> None: ...
    def add_request(
        self,
        input_ids: list[int],
        *,
        request_id: str,
        max_new_tokens: int,
        streaming: bool,
        eos_token_id: int | list[int],
    ) -> object: ...
    def get_result(self, *, timeout: float) -> RequestResult | None: ...
    def cancel_request(self, request_id: str) -> None: ...


class BatchingModel(CausalModel, Protocol):
    """A causal model with continuous batching."""

    def init_continuous_batching(
        self, *, generation_config: object, continuous_batching_config: object
    ) -> Manager: ...
