"""llama.cpp as an engine of Evalution: GGUF models in this process, on llama-cpp-python."""

from evalution_llama_cpp.engine import LlamaCpp

__all__ = ["LlamaCpp"]
