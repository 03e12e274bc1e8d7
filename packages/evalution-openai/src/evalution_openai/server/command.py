"""`evalution serve`."""

from __future__ import annotations

import gc
import logging
import os
from typing import Annotated

import typer

from evalution_core import BaseEngine, ConfigurationError, Model, load_engine
from evalution_enginekit.runtime import parse_model_fields, parse_option_pairs
from evalution_openai.server import ServerSettings, require_extra
from evalution_openai.server.settings import check_bind

_MIB = 1024 * 1024


EngineName = Annotated[str, typer.Option(help="The engine; `evalution engines` lists them.")]
ModelPath = Annotated[
    str | None,
    typer.Argument(help="builtin:tiny, a path, or a name; left out: the engine's default."),
]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the engine."),
]
ModelFields = Annotated[
    list[str] | None,
    typer.Option("--model-field", "-m", metavar="KEY=VALUE", help="As tokenizer_path=FOLDER."),
]
ServedName = Annotated[
    str | None, typer.Option(help="What clients call the model [default: MODEL].")
]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")]
KeyVariable = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The environment variable that holds the API key."),
]
PublicWithoutKey = Annotated[
    bool,
    typer.Option("--public-without-key", help="Accept clients without a key on a public address."),
]
MaxConcurrent = Annotated[
    int | None, typer.Option(min=1, help="Requests of one stream in the engine at once.")
]
MaxQueue = Annotated[int, typer.Option(min=0, help="Requests that wait; more get 429.")]
MaxBody = Annotated[int, typer.Option(min=1, help="The longest body of a request.")]
MaxHeld = Annotated[
    int | None,
    typer.Option(min=1, help="All bodies at once; more get 429 [default: 8 of the longest]."),
]
MaxText = Annotated[
    int | None,
    typer.Option(min=1, help="Characters or token ids of one text [default: 2**20, or what fits]."),
]
NoRequestLog = Annotated[bool, typer.Option("--no-request-log", help="No line for each request.")]
LogPrompts = Annotated[bool, typer.Option("--log-prompts", help="Log the bodies of requests, too.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def serve(
    engine: EngineName,
    model: ModelPath = None,
    option: EngineOptions = None,
    model_field: ModelFields = None,
    name: ServedName = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_env: KeyVariable = None,
    public_without_key: PublicWithoutKey = False,
    max_concurrent: MaxConcurrent = None,
    max_queue: MaxQueue = 512,
    max_body_mib: MaxBody = 16,
    max_held_mib: MaxHeld = None,
    max_text: MaxText = None,
    no_request_log: NoRequestLog = False,
    log_prompts: LogPrompts = False,
    debug: Debug = False,  # read by the runner, which prints the errors of every command
) -> None:
    """Serve a model to clients of OpenAI, lm-eval and others, until Ctrl-C."""
    settings = ServerSettings(
        model_name=name,
        api_key=_read_key(api_key_env),
        max_concurrent=max_concurrent,
        max_queue=max_queue,
        max_body_bytes=max_body_mib * _MIB,
        max_held_bytes=_to_held_bytes(max_held_mib, max_body_mib),
        max_text=max_text,
        any_host=public_without_key,
        log_requests=not no_request_log,
        log_prompts=log_prompts,
    )
    check_bind(host, settings)
    made = load_engine(engine).from_options(parse_option_pairs("--option", option))
    fields = parse_model_fields("--model-field", model_field)
    _serve(made, Model(path=model or made.default_model(), **fields), settings, host, port)


def _serve(
    engine: BaseEngine, model: Model, settings: ServerSettings, host: str, port: int
) -> None:
    with require_extra():
        from evalution_openai.server import app, connections, serving  # noqa: PLC0415

    serving.share_one_heap()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # Before the weights are loaded: the port may be taken.
    with connections.bind_socket(host, port) as bound, engine.build(model) as session:
        server = app.OpenAICompatibleServer(session, engine, model, settings)
        url = connections.format_url(host, bound.getsockname()[1])
        print(f"serving {server.served().name} on {url}/v1 ({type(engine).__name__})", flush=True)
        # Modules and model stay: the garbage collector needn't visit them again and again.
        gc.collect()
        gc.freeze()
        connections.listen(server, bound)


def _to_held_bytes(held_mib: int | None, body_mib: int) -> int | None:
    if held_mib is None:
        return None
    if held_mib < body_mib:
        raise ConfigurationError(
            f"--max-held-mib {held_mib} leaves no room for one body of --max-body-mib {body_mib}; "
            "raise it, or lower the other"
        )
    return held_mib * _MIB


def _read_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if key := os.environ.get(variable):
        return key
    raise ConfigurationError(f"--api-key-env {variable}: that environment variable is not set")
