# tensorrt_llm/__init__.py at c40f1157d276de8e38bbff9958a2da8e6078a1f6
from tensorrt_llm.llmapi import LLM as LLM
from tensorrt_llm.sampling_params import SamplingParams as SamplingParams
