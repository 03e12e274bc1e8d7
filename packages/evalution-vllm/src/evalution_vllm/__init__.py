"""The vLLM engine of Evalution: `VLLM`."""

from evalution_vllm.engine import VLLM

__all__ = ["VLLM"]
