"""Any session behind OpenAI's HTTP routes, and scoring routes of its own. Extra: `server`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

from evalution_core import BaseEngine, BaseInferenceSession, EngineUnavailableError, Model
from evalution_openai.server.settings import ServerOptions, ServerSettings

if TYPE_CHECKING:
    from evalution_openai.server.app import Application

__all__ = ["ServerSettings", "build_openai_compatible_server"]


def build_openai_compatible_server(
    *,
    session: BaseInferenceSession | None = None,
    engine: BaseEngine | None = None,
    model: Model | str | None = None,
    **options: Unpack[ServerOptions],
) -> Application:
    """An ASGI application that answers with `session`, or with what `engine` builds of `model`.

    A session that is given stays the caller's. With an engine, the session is built when the
    application starts and closed when it ends: run it with a server that supports lifespans.

    Args:
        session: a live session; its capabilities are its own, or the guide's where it tells none.
        engine: in place of a session.
        model: what to build, a `Model` or its path; beside a session, only the name to serve.
        options: the fields of `ServerSettings`.

    Raises:
        ConfigurationError: neither or both of session and engine, or a setting out of range.
        EngineUnavailableError: the packages of the extra `server` aren't installed.
    """
    settings = ServerSettings(**options)
    with needing_extra():
        from evalution_openai.server.app import build_app  # noqa: PLC0415 - the extra's packages
    wanted = Model(path=model) if isinstance(model, str) else model
    return build_app(session, engine, wanted, settings)


@contextmanager
def needing_extra() -> Generator[None]:
    """Within it, a package of the extra that is missing is an `EngineUnavailableError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise EngineUnavailableError(
            f'the server needs the package {error.name}; pip install "evalution-openai[server]"'
        ) from error
