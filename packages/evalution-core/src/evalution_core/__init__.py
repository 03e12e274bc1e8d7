"""The contract between evaluation and engines: types, two base classes, errors, discovery.

Engines and their callers need these names; everything else is in the modules:
`requests`, `kinds`, `streams`, `encoding`, `discovery`, `options`, `redaction`, `plugins`.
"""

from evalution_core.capabilities import Capability
from evalution_core.discovery import load_engine, register_engine
from evalution_core.engine import BaseEngine
from evalution_core.errors import (
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    InvalidRequestError,
    SessionClosedError,
    UnknownEngineError,
    UnsupportedRequestError,
)
from evalution_core.model import Model
from evalution_core.options import EngineSpec, secret, speed_only, validate_options
from evalution_core.requests import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    StreamEvent,
    TextDelta,
)
from evalution_core.session import (
    BaseInferenceSession,
    CheckResult,
    SessionInfo,
    TextCodec,
)
from evalution_core.streams import RequestStream

__all__ = [
    "BaseEngine",
    "BaseInferenceSession",
    "Capability",
    "CheckResult",
    "ConfigurationError",
    "ContextLengthError",
    "EngineRuntimeError",
    "EngineSpec",
    "EngineUnavailableError",
    "EvalutionError",
    "GenerationOutput",
    "GenerationRequest",
    "InvalidRequestError",
    "LoglikelihoodOutput",
    "LoglikelihoodRequest",
    "Model",
    "RequestFailure",
    "RequestStream",
    "RollingLoglikelihoodOutput",
    "RollingLoglikelihoodRequest",
    "SessionClosedError",
    "SessionInfo",
    "StreamEvent",
    "TextCodec",
    "TextDelta",
    "UnknownEngineError",
    "UnsupportedRequestError",
    "load_engine",
    "register_engine",
    "secret",
    "speed_only",
    "validate_options",
]
