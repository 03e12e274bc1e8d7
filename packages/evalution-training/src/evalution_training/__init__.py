"""Training backends: what puts a model into memory, for engines to attach to while it trains."""

from evalution_training.evaluation import PeriodicEvaluation
from evalution_training.registry import (
    TrainingBackend,
    available_backends,
    load_backend,
    register_backend,
)
from evalution_training.runs import TrainingModel, make_backend, prepare_model

__all__ = [
    "PeriodicEvaluation",
    "TrainingBackend",
    "TrainingModel",
    "available_backends",
    "load_backend",
    "make_backend",
    "prepare_model",
    "register_backend",
]
