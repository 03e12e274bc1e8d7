"""From options, or from somebody's client, to a session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalution_core import (
    Capability,
    ConfigurationError,
    Model,
    builtin_path,
    did_you_mean,
    scrub,
)
from evalution_enginekit import RequestLoop, Tokenizer, load_tokenizer, runtime_errors
from evalution_enginekit.tokenizer_files import checkpoint_tokenizer
from evalution_tinker.clients import (
    WEIGHTS,
    OwnClient,
    connected,
    sampling_client,
)
from evalution_tinker.handles import attachment
from evalution_tinker.sampling import Sampling
from evalution_tinker.server import Server, client_version, found_server
from evalution_tinker.session import TinkerSession
from evalution_tinker.survey import survey

if TYPE_CHECKING:
    from evalution_tinker.engine import Tinker

_PROBE = "The first of 3"
_NO_WINDOW = "the server tells no window, so it decides what is too long; set max_model_len"


def built_session(tinker: Any, options: Tinker, model: Model) -> TinkerSession:
    """A session on a client of its own; raises as `Tinker.build`."""
    server = found_server(options)
    name = model.path or next(iter(server.models), None)
    if name is None:
        raise ConfigurationError(
            f"the server at {scrub(server.url)} lists no model; set model.path to a name that it "
            f"knows, or to {WEIGHTS}…"
        )
    _check_known(name, server)
    tokenizer = _tokenizer(options, model, name)
    service = connected(
        lambda: tinker.ServiceClient(base_url=server.url, api_key=server.key),
        server.timeout_s,
        server.url,
    )
    own = OwnClient(tinker, service)
    try:
        client = connected(lambda: sampling_client(service, name), server.timeout_s, server.url)
    except BaseException:
        own.close()
        raise
    return _session(
        tinker,
        options,
        client,
        tokenizer,
        {"model": name, "server": scrub(server.url), "attached": False},
        own=own,
        window=server.models.get(name),
        url=server.url,
    )


def attached_session(
    tinker: Any, options: Tinker, handles: Mapping[str, Any], model: Model | None
) -> TinkerSession:
    """A session on a client of the caller's; raises as `Tinker.attach`."""
    found = attachment(handles, connect_s=options.timeout_s, save_s=options.request_timeout_s)
    tokenizer = _tokenizer(options, model or Model(), found.base_model)
    described = {"model": found.model, "server": None, "attached": True}
    return _session(tinker, options, found.client, tokenizer, described)


def _session(
    tinker: Any,
    options: Tinker,
    client: Any,
    tokenizer: Tokenizer,
    described: dict[str, Any],
    *,
    own: OwnClient | None = None,
    window: int | None = None,
    url: str | None = None,
) -> TinkerSession:
    limit = _window(options, window)
    missing = {} if limit is not None else {Capability.TRUNCATION: _NO_WINDOW}
    loop = RequestLoop("the Tinker session", options.batch_size)
    try:
        sampling = Sampling(tinker, client, url, options.request_timeout_s)
        probe = [*tokenizer.leading_ids, *tokenizer.encode(_PROBE)]
        with runtime_errors("asking the server for a first token"):
            findings = loop.call(lambda: survey(sampling, probe, options.capabilities, missing))
        return TinkerSession(
            sampling,
            findings,
            {**described, "client": client_version()},
            own,
            loop=loop,
            tokenizer=tokenizer,
            max_model_len=limit,
        )
    except BaseException:
        loop.close(_nothing)
        if own is not None:
            own.close()
        raise


async def _nothing() -> None:
    """What a loop awaits last that has nothing to release."""


def _window(options: Tinker, told: int | None) -> int | None:
    """How much can be fed when scoring: one token of the server's window is for the sampled one."""
    most = None if told is None else told - 1
    if options.max_model_len is None:
        return most
    if most is not None and options.max_model_len > most:
        raise ConfigurationError(
            f"max_model_len={options.max_model_len} is more than the server's window of {told} "
            f"holds beside the one token that is sampled with each score ({most})"
        )
    return options.max_model_len


def _check_known(name: str, server: Server) -> None:
    if name.startswith(WEIGHTS) or not server.models or name in server.models:
        return
    raise ConfigurationError(
        f"the server at {scrub(server.url)} has no model {name!r}"
        f"{did_you_mean(name, server.models)} (models: {', '.join(server.models)})"
    )


def _tokenizer(options: Tinker, model: Model, name: str | None) -> Tokenizer:
    own = model.tokenizer_path or (model.tokenizer if isinstance(model.tokenizer, str) else None)
    if not (model.tokenizer is None or isinstance(model.tokenizer, str)):
        return checkpoint_tokenizer(model, None)
    path = options.tokenizer_path or own or name
    if path is None or path.startswith(WEIGHTS):
        raise ConfigurationError(
            f"engine Tinker encodes prompts here and needs the model's tokenizer, which can't be "
            f"told from {path or 'a client'!r}; set tokenizer_path to a folder or a Hub id"
        )
    if path.startswith("builtin:"):
        path = str(builtin_path(path, "safetensors"))
    folder = Path(path).expanduser()
    named = Model(
        tokenizer_path=str(folder) if folder.exists() else path,
        trust_remote_code=model.trust_remote_code,
        tokenizer_kwargs=model.tokenizer_kwargs,
        chat_template_kwargs=model.chat_template_kwargs,
    )
    return load_tokenizer(named, folder if folder.is_dir() else folder.parent)
