"""A server of the protocol for the whole run, and an environment that the client may be used in."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def client_settings() -> Generator[None]:
    """A key, and no word to anybody else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", "tml-a-key-of-the-tests")
        patch.setenv("TINKER_TELEMETRY", "0")
        patch.delenv("TINKER_BASE_URL", raising=False)
        yield
    gc.collect()  # open connections of the client are reported here, under the tests' filters


@pytest.fixture(scope="session")
def protocol_server(client_settings: None) -> Generator[Any]:
    from protocol_server import serving

    with serving() as server:
        yield server


@pytest.fixture
def server(protocol_server: Any) -> Generator[Any]:
    """The server without quirks; a test may give it some."""
    protocol_server.quirks.clear()
    protocol_server.asked.clear()
    yield protocol_server
    protocol_server.quirks.clear()


@pytest.fixture(scope="session")
def skyrl_url(tmp_path_factory: pytest.TempPathFactory, client_settings: None) -> Generator[str]:
    """A real server of the tiny model, under the path of its folder."""
    from skyrl_server import skyrl

    from evalution_core.builtins import builtin_path

    tiny = builtin_path("builtin:tiny", "safetensors")
    with skyrl(tmp_path_factory.mktemp("skyrl"), tiny) as url:
        yield url
