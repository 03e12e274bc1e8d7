"""Options of the Tinker engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from evalution_core import speed_only

LONGEST_S = 86_400
"""A day: no clock of a socket or a thread overflows."""


@dataclass(slots=True)
class TinkerOptions:
    """A Tinker-compatible server, and how it is asked."""

    base_url: Annotated[
        str | None,
        Field(
            description="URL of the server; None takes the environment's TINKER_BASE_URL, else "
            "the hosted service."
        ),
    ] = None
    api_key_env: Annotated[
        str,
        Field(
            description="Name of the environment variable that holds the key, read when a session "
            "is built. The client takes keys that begin with `tml-`, also for a server that needs "
            "none."
        ),
    ] = speed_only(default="TINKER_API_KEY")
    tokenizer_path: Annotated[
        str | None,
        Field(
            description="Folder, file or Hub id of the tokenizer; None takes "
            "`model.tokenizer_path`, else the model's name, which then is a local folder or a Hub "
            "id."
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Field(
            ge=2,
            description="Tokens that the model is fed at most; None takes the window that the "
            "server reports.",
        ),
    ] = None
    timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=LONGEST_S,
            description="Seconds within which the server must answer its first request.",
        ),
    ] = speed_only(default=90.0)
    request_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=LONGEST_S,
            description="Seconds for one request, the client's own retries included.",
        ),
    ] = speed_only(default=300.0)
    batch_size: Annotated[
        int,
        Field(ge=1, description="Requests in flight; the next one starts when one is answered."),
    ] = speed_only(default=8)
