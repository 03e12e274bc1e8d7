# tensorrt_llm/llmapi/__init__.py at 5ca85aff65b2c7d0ba06fb6c7d7c015ed78886f8
from tensorrt_llm.llmapi.llm import LLM as LLM
from tensorrt_llm.llmapi.llm import RequestOutput as RequestOutput
