"""Builds a session in worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalution.workers.options import WorkerOptions
from evalution.workers.parcel import main_module, pack_configuration
from evalution.workers.placement import places
from evalution.workers.process import Blueprint, WorkerProcess
from evalution.workers.session import SupervisedSession
from evalution.workers.supervision import Supervision, beat_interval
from evalution_core import BaseEngine, ConfigurationError, Model


def build_supervised(
    engine: BaseEngine,
    model: Model,
    *,
    workers: int = 1,
    options: WorkerOptions | None = None,
    devices: Sequence[str] | None = None,
) -> SupervisedSession:
    """Load `model` in worker processes, which are gone when the session is closed.

    They inherit this process's environment with the credentials in it, which the engine may need.
    What they print goes to standard error.

    Args:
        engine: built once in each worker. It and the model must pickle.
        workers: how many processes; they answer one session's requests together.
        options: deadlines and restarts.
        devices: what each worker sees as `CUDA_VISIBLE_DEVICES`, one entry for each. None leaves
            the devices as they are and divides the cores.

    Raises:
        ConfigurationError: the engine or model can't be pickled, or allows fewer workers.
        EvalutionError: what the build raised in a worker.
        EngineRuntimeError: a worker ended, or missed its deadline, while it loaded the model.
    """
    check_workers(engine, workers, devices)
    options = options or WorkerOptions()
    packed_engine, packed_model = pack_configuration(engine), pack_configuration(model)
    blueprint = Blueprint(
        packed_engine,
        packed_model,
        main_module(packed_engine, packed_model),
        beat_interval(options),
        options.heartbeat_timeout,
    )
    seats = places(workers, devices)
    supervision = Supervision(
        workers, lambda index: WorkerProcess(blueprint, seats[index]), options
    )
    supervision.start()
    description: dict[str, Any] = {"isolated": True, "replicas": workers}
    if devices is not None:
        description["visible_devices"] = list(devices)
    return SupervisedSession(
        supervision, requests_limit=engine.requests_limit, description=description
    )


def check_workers(engine: BaseEngine, workers: int, devices: Sequence[str] | None = None) -> None:
    """Raise `ConfigurationError` unless so many workers may build the engine."""
    name = type(engine).__name__
    if type(workers) is not int or workers < 1:
        raise ConfigurationError(
            f"the number of workers must be an int of at least 1, got {workers!r}"
        )
    for limit, what in (
        (engine.processes_limit, "may be built in at most {} process(es) at once"),
        (engine.requests_limit, "may have at most {} request(s) in flight over all processes"),
    ):
        if limit is not None and workers > limit:
            raise ConfigurationError(
                f"engine {name} {what.format(limit)}, so {workers} workers can't be used; ask for "
                f"{limit} or fewer"
            )
    if devices is not None and len(devices) != workers:
        raise ConfigurationError(
            f"{workers} workers need {workers} devices, one entry each, got {list(devices)!r}"
        )
