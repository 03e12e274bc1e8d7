"""The session: the runner's own, over actors."""

from __future__ import annotations

from typing import Any

from evalution.workers import SupervisedSession, Supervision
from evalution_ray.connection import Connection
from evalution_ray.dispatcher import Dispatcher


class RaySession(SupervisedSession):
    """Ends with the actors, and with the local cluster if that was started for it."""

    def __init__(
        self,
        supervision: Supervision,
        dispatcher: Dispatcher,
        connection: Connection,
        *,
        requests_limit: int | None,
        description: dict[str, Any],
    ):
        super().__init__(supervision, requests_limit=requests_limit, description=description)
        self._dispatcher = dispatcher
        self._connection = connection

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._dispatcher.close()
            self._connection.close()
