"""Training backends: what puts a model into memory, for engines to attach to while it trains."""

from evalution_training.evaluation import PeriodicEvaluation
from evalution_training.preparing import make_backend, prepared
from evalution_training.protocol import TrainingBackend
from evalution_training.registry import (
    BackendEntry,
    available_backends,
    load_backend,
    register_backend,
)
from evalution_training.runs import TrainingModel

__all__ = [
    "BackendEntry",
    "PeriodicEvaluation",
    "TrainingBackend",
    "TrainingModel",
    "available_backends",
    "load_backend",
    "make_backend",
    "prepared",
    "register_backend",
]
