# tensorrt_llm/executor/result.py at a678b91aafbeff265cd0b764abb59d7def624ac2
from dataclasses import dataclass, field
from typing import Any

@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None

@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] | None = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: Any = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] | None = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None
    additional_context_outputs: Any = None
    additional_generation_outputs: Any = None
    disaggregated_params: Any = None
    request_perf_metrics: Any = None
    _last_text_len: int = field(default=0, init=False, repr=False)
    _last_token_ids_len: int = field(default=0, init=False, repr=False)
    _last_logprobs_len: int = field(default=0, init=False, repr=False)
    _incremental_states: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _postprocess_result: Any = None

    @property
    def length(self) -> int: ...
    @property
    def text_diff(self) -> str: ...
    @property
    def token_ids_diff(self) -> list[int]: ...
    @property
    def logprobs_diff(self) -> Any: ...

class GenerationResultBase:
    id: int
    cached_tokens: int

    @property
    def outputs(self) -> list[CompletionOutput]: ...
    @property
    def context_logits(self) -> Any: ...

class DetokenizedGenerationResultBase(GenerationResultBase): ...

class GenerationResult(GenerationResultBase):
    @property
    def request_id(self) -> int: ...
    @property
    def prompt_token_ids(self) -> list[int]: ...
    def abort(self) -> None: ...
    def aborted(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    def result(self, timeout: float | None = None) -> GenerationResult: ...
    async def aresult(self) -> GenerationResult: ...
    def __await__(self) -> Any: ...
    def __aiter__(self) -> GenerationResult: ...
    async def __anext__(self) -> GenerationResult: ...
