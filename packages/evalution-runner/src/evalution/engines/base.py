"""The contract's names where the Engine Guide imports them from; they live in `evalution_core`."""

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    register_engine,
)

InferenceSession = BaseInferenceSession

__all__ = [
    "BaseEngine",
    "BaseInferenceSession",
    "Capability",
    "GenerationOutput",
    "GenerationRequest",
    "InferenceSession",
    "LoglikelihoodOutput",
    "LoglikelihoodRequest",
    "Model",
    "RequestFailure",
    "RollingLoglikelihoodOutput",
    "RollingLoglikelihoodRequest",
    "register_engine",
]
