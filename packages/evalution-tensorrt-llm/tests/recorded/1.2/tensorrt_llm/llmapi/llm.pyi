# tensorrt_llm/llmapi/llm.py at 4c05a74891e4df8066f08ed4ce14b0972abe4e25
from typing import Any

from tensorrt_llm.executor.executor import GenerationExecutor
from tensorrt_llm.executor.result import DetokenizedGenerationResultBase, GenerationResult
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

class RequestOutput(DetokenizedGenerationResultBase, GenerationResult):
    @property
    def prompt(self) -> str | None: ...

class BaseLLM:
    args: TorchLlmArgs
    _executor: GenerationExecutor | None

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        tokenizer_mode: Any = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None: ...
    def generate(
        self,
        inputs: Any,
        sampling_params: Any = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: Any = None,
    ) -> Any: ...
    def generate_async(
        self,
        inputs: Any,
        sampling_params: Any = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput: ...
    def shutdown(self) -> None: ...

class _TorchLLM(BaseLLM):
    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        tokenizer_mode: Any = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None: ...

class LLM(_TorchLLM): ...
