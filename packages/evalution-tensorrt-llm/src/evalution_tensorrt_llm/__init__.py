"""The TensorRT-LLM engine of Evalution: `TensorRTLLM`."""

from evalution_tensorrt_llm.engine import TensorRTLLM

__all__ = ["TensorRTLLM"]
