# Not read: that LLM and RequestOutput are exported is what upstream's documentation shows.
from tensorrt_llm.llmapi.llm import LLM as LLM
from tensorrt_llm.llmapi.llm import RequestOutput as RequestOutput
