# Not read: that LLM and SamplingParams are exported is what upstream's documentation shows.
from tensorrt_llm.llmapi import LLM as LLM
from tensorrt_llm.sampling_params import SamplingParams as SamplingParams
