"""Real clients, unmodified, against our server with the tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evalution_core import BaseInferenceSession, Model, load_engine


@pytest.fixture(scope="session", autouse=True)
def _server_extra() -> None:
    pytest.importorskip("starlette", reason="the extra `server` isn't installed")


@pytest.fixture(scope="session")
def tiny() -> Iterator[BaseInferenceSession]:
    with load_engine("Reference")().build(Model("builtin:tiny")) as session:
        yield session


@pytest.fixture(scope="session")
def url(tiny: BaseInferenceSession) -> Iterator[str]:
    from evalution_openai.server import build_openai_compatible_server

    with build_openai_compatible_server(session=tiny, model_name="tiny") as server:
        yield server.base_url


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's tokenizer as Transformers loads it."""
    from evalution_core.builtins import builtin_path

    source = builtin_path("builtin:tiny", "safetensors")
    folder = tmp_path_factory.mktemp("tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    template = source / "chat_template.jinja"
    if template.exists():
        (folder / template.name).write_bytes(template.read_bytes())
    return folder
