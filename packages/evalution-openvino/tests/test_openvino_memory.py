"""Memory that runs out has an exception of its own, after which a smaller batch is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evalution_core import EngineRuntimeError, GenerationRequest

pytest.importorskip("optimum.intel", reason="optimum-intel is not installed")

from evalution_openvino.stateful import memory_errors

# As in test_conformance_openvino.py.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

_BUFFER = "node.cpp:794: [CPU] RoPE node: Failed to allocate 81920000 bytes of memory"


class _Scarce:
    """An infer request with memory for so many sequences at once."""

    def __init__(self, request: Any, most: int):
        self._request = request
        self.most = most
        self.sizes: list[int] = []

    def start_async(self, inputs: dict[str, Any], **named: Any) -> None:
        self.sizes.append(len(inputs["input_ids"]))
        if self.sizes[-1] > self.most:
            raise RuntimeError(_BUFFER)
        self._request.start_async(inputs, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


@pytest.fixture
def scarce(random_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> _Scarce:
    """The request that the session on `llama` generates with, for two sequences."""
    model = random_session("llama")._model
    model.compile()
    request = _Scarce(model.request, 2)
    monkeypatch.setattr(model, "request", request)
    return request


def _requests(**options: Any) -> list[GenerationRequest]:
    prompts = ("w5 w6 w7", "w8", "w9 w10", "w11 w12 w13 w14", "w15")
    return [GenerationRequest(prompt, max_new_tokens=5, **options) for prompt in prompts]


def test_out_of_memory_halves_the_batch(
    random_session: Callable[..., Any], scarce: _Scarce
) -> None:
    session = random_session("llama")
    scarce.most = 16
    expected = [output.text for output in session.generate(_requests())]
    assert max(scarce.sizes) == len(expected)
    scarce.most = 2
    assert [output.text for output in session.generate(_requests())] == expected
    assert scarce.sizes[-1] <= 2


def test_a_beam_search_out_of_memory_does_not_change_later_answers(
    random_session: Callable[..., Any], scarce: _Scarce
) -> None:
    session = random_session("llama")
    expected = [output.text for output in session.generate(_requests())]
    scarce.most = 0
    with pytest.raises(EngineRuntimeError, match="memory ran out for this prompt alone"):
        session.generate(_requests(num_beams=3)[:1])
    scarce.most = 2
    assert [output.text for output in session.generate(_requests())] == expected


@pytest.mark.parametrize(
    "message",
    [
        _BUFFER,
        "src/core/src/runtime/allocator.cpp:79: std::bad_alloc",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_messages_of_lacking_memory_are_recognised(message: str) -> None:
    with pytest.raises(MemoryError, match="alloc"), memory_errors():
        raise RuntimeError(message)


def test_other_runtime_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes differ") as caught, memory_errors():
        raise RuntimeError("shapes differ")
    assert caught.type is RuntimeError
