"""Builds a session from options, or from a client of the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

from evalution_core import Capability, ConfigurationError, Model
from evalution_core.builtins import builtin_path
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import redact_text
from evalution_enginekit import RequestLoop, Tokenizer, load_tokenizer, runtime_errors
from evalution_enginekit.model_source import refuse_model_fields
from evalution_tinker.options import TinkerOptions
from evalution_tinker.probe import probe_server
from evalution_tinker.runtime import (
    WEIGHTS,
    Server,
    close_service,
    connect_within,
    find_server,
    import_tinker,
    make_sampling_client,
    read_client_version,
    resolve_client,
)
from evalution_tinker.session import TinkerSession
from evalution_tinker.upstream import Sampling

_REMEDIES = {
    "model_kwargs": "the server loads the model; leave them out",
    "revision": "the server decides which weights a name has (a tokenizer of one goes into "
    "tokenizer_path as a folder); leave it out",
}
_PROBE = "The first of 3"
_NO_WINDOW = "the server reports no window, so it decides what is too long; set max_model_len"


def build_session(
    options: TinkerOptions, capabilities: frozenset[Capability], model: Model
) -> TinkerSession:
    """Build a session on a client of its own; raises as `Tinker.build`."""
    refuse_model_fields(options, model, _REMEDIES)
    tinker = import_tinker()
    server = find_server(options)
    name = model.path or next(iter(server.models), None)
    if name is None:
        raise ConfigurationError(
            f"the server at {redact_text(server.url)} lists no model; set model.path to a name "
            f"that it knows, or to {WEIGHTS}…"
        )
    _check_known(name, server)
    tokenizer = _load_tokenizer(options, model, name)
    with ExitStack() as resources:
        service = connect_within(
            lambda: tinker.ServiceClient(base_url=server.url, api_key=server.key),
            server.timeout_s,
            server.url,
        )
        resources.callback(close_service, tinker, service)
        client = connect_within(
            lambda: make_sampling_client(service, name), server.timeout_s, server.url
        )
        sampling = Sampling(
            tinker, client, server.url, options.request_timeout_s, secrets=(server.key,)
        )
        described = {"model": name, "server": redact_text(server.url), "attached": False}
        window = _choose_window(options, server.models.get(name))
        return _make_session(
            options, capabilities, sampling, tokenizer, window, described, resources
        )


def attach_session(
    options: TinkerOptions,
    capabilities: frozenset[Capability],
    handles: Mapping[str, Any],
    model: Model | None,
) -> TinkerSession:
    """Build a session on a client of the caller's; raises as `Tinker.attach`."""
    tinker = import_tinker()
    found = read_attachment(handles, connect_s=options.timeout_s, save_s=options.request_timeout_s)
    tokenizer = _load_tokenizer(options, model or Model(), found.base_model)
    sampling = Sampling(tinker, found.client, None, options.request_timeout_s)
    described = {"model": found.model, "server": None, "attached": True}
    return _make_session(
        options,
        capabilities,
        sampling,
        tokenizer,
        options.max_model_len,
        described,
        ExitStack(),
    )


def _make_session(
    options: TinkerOptions,
    capabilities: frozenset[Capability],
    sampling: Sampling,
    tokenizer: Tokenizer,
    window: int | None,
    described: dict[str, Any],
    resources: ExitStack,
) -> TinkerSession:
    missing = {} if window is not None else {Capability.TRUNCATION: _NO_WINDOW}
    probe = [*tokenizer.leading_ids, *tokenizer.encode(_PROBE)]
    with ExitStack() as unbuilt:
        loop = RequestLoop("the Tinker session", options.batch_size)
        unbuilt.callback(loop.close, _nothing)
        with runtime_errors("asking the server for a first token"):
            server = loop.call(lambda: probe_server(sampling, probe, capabilities, missing))
        session = TinkerSession(
            sampling,
            server,
            {**described, "client": read_client_version()},
            resources.pop_all(),
            loop=loop,
            tokenizer=tokenizer,
            max_model_len=window,
        )
        unbuilt.pop_all()
        return session


async def _nothing() -> None:
    """Release nothing, as the last step of a loop whose session was not built."""


def _choose_window(options: TinkerOptions, reported: int | None) -> int | None:
    """Return the tokens that scoring can feed.

    A score sends the last token too, which is only scored, and the server samples one more.
    """
    most = None if reported is None else reported - 2
    if options.max_model_len is None:
        return most
    if most is not None and options.max_model_len > most:
        raise ConfigurationError(
            f"max_model_len={options.max_model_len} is more than the server's window of {reported} "
            "holds beside the last token of a score and the one that is sampled with it "
            f"({most}); set max_model_len={most} at most"
        )
    return options.max_model_len


def _check_known(name: str, server: Server) -> None:
    if name.startswith(WEIGHTS) or not server.models or name in server.models:
        return
    raise ConfigurationError(
        f"the server at {redact_text(server.url)} has no model {name!r}"
        f"{did_you_mean(name, server.models)} (models: {', '.join(server.models)})"
    )


def _load_tokenizer(options: TinkerOptions, model: Model, name: str | None) -> Tokenizer:
    own = model.tokenizer_path or (model.tokenizer if isinstance(model.tokenizer, str) else None)
    if not (model.tokenizer is None or isinstance(model.tokenizer, str)):
        return load_tokenizer(model, None)
    path = options.tokenizer_path or own or name
    if path is None or path.startswith(WEIGHTS):
        raise ConfigurationError(
            f"engine Tinker encodes prompts itself and needs the model's tokenizer, which "
            f"{path or 'a client'!r} doesn't name; set tokenizer_path to a folder or a Hub id"
        )
    if path.startswith("builtin:"):
        path = str(builtin_path(path, "safetensors"))
    named = Model(
        tokenizer_path=path,
        trust_remote_code=model.trust_remote_code,
        tokenizer_kwargs=model.tokenizer_kwargs,
        chat_template_kwargs=model.chat_template_kwargs,
    )
    return load_tokenizer(named, None)


_WANTED = "sampling_client, or training_client, or service_client and model_name"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A sampling client, and the names that the handles give its model."""

    client: Any
    model: str | None
    base_model: str | None


def read_attachment(handles: object, *, connect_s: float, save_s: float) -> Attachment:
    """Return the sampling client that `handles` hold, or make one from them.

    Args:
        handles: a mapping of one of the kinds in `Tinker.attach`.
        connect_s: seconds for making a client.
        save_s: seconds for saving a training client's weights.

    Raises:
        ConfigurationError: they are of another kind; names what is accepted and given.
        EngineUnavailableError: the server took too long.
    """
    if not isinstance(handles, Mapping):
        raise ConfigurationError(
            f"engine Tinker attaches to handles with {_WANTED}; it got a {type(handles).__name__}"
        )
    given = dict(cast("Mapping[str, Any]", handles))
    base = _read_text(given.get("model_name"))
    checkpoint = given.get("load_checkpoint_path") or given.get("init_from_checkpoint")
    model = _read_text(checkpoint) or base
    sampling, training = given.get("sampling_client"), given.get("training_client")
    service = given.get("service_client")
    if sampling is not None:
        client = resolve_client(sampling)
        _check(client, "sampling_client", "sample")
    elif training is not None:
        _check(training, "training_client", "save_weights_and_get_sampling_client")
        client = connect_within(
            lambda: resolve_client(training.save_weights_and_get_sampling_client()), save_s, None
        )
    elif service is not None and model is not None:
        _check(service, "service_client", "create_sampling_client")
        client = connect_within(lambda: make_sampling_client(service, model), connect_s, None)
    else:
        raise ConfigurationError(
            f"engine Tinker attaches to handles with {_WANTED}; it got a mapping with "
            f"{', '.join(map(str, given)) or 'nothing'}"
        )
    return Attachment(client, model, base)


def _read_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _check(client: Any, handle: str, method: str) -> None:
    if not callable(getattr(client, method, None)):
        raise ConfigurationError(
            f"engine Tinker attaches to handles with {_WANTED}; its {handle} must have {method}(), "
            f"got a {type(client).__name__}"
        )
