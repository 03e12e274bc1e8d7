"""A server for any session: OpenAI's HTTP routes, and routes that score. Extra: `server`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    ConfigurationError,
    EngineUnavailableError,
    Model,
)
from evalution_openai.server.settings import ServerOptions, ServerSettings, check_bind

if TYPE_CHECKING:
    from evalution_openai.server.app import OpenAICompatibleServer

__all__ = ["ServerSettings", "build_openai_compatible_server"]


def build_openai_compatible_server(
    *,
    session: BaseInferenceSession | None = None,
    engine: BaseEngine | None = None,
    model: Model | str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    **options: Unpack[ServerOptions],
) -> OpenAICompatibleServer:
    """Make a server of `session`, or of the session that `engine` builds of `model`.

    It listens from `start()`, or the beginning of a `with`, to `close()`. It is also an ASGI
    application, for any server that supports lifespans. A given session stays the caller's; one of
    an engine is built when the server starts and closed when it ends.

    Args:
        session: a live session.
        engine: an engine in place of a session.
        model: the model to build, a `Model` or its path; with a session, only the name to serve.
        host: the address on which `start()` listens.
        port: its port; 0: any free one.
        options: the fields of `ServerSettings`.

    Raises:
        ConfigurationError: neither or both of session and engine, a setting out of range, or an
            address that other machines can reach without a key.
        EngineUnavailableError: the packages of the extra `server` aren't installed.
    """
    settings = ServerSettings(**options)
    if (session is None) == (engine is None):
        raise ConfigurationError("a server needs a session, or an engine and a model; not both")
    with require_extra():
        from evalution_openai.server.app import OpenAICompatibleServer  # noqa: PLC0415 - the extra
    check_bind(host, settings)
    if engine is not None and model is None:
        model = engine.default_model()
        if model is None:
            raise ConfigurationError(
                f"engine {type(engine).__name__} has no default model; name the model to serve"
            )
    wanted = Model(path=model) if isinstance(model, str) else model
    return OpenAICompatibleServer(session, engine, wanted, settings, host, port)


@contextmanager
def require_extra() -> Generator[None]:
    """Raise `EngineUnavailableError` for a missing package of the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise EngineUnavailableError(
            f'the server needs the package {error.name}; pip install "evalution-openai[server]"'
        ) from error
