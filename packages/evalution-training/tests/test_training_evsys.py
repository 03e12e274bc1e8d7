"""Classes that were written for EvSys work as they are, in its packages and in ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, EngineRuntimeError
from evalution_training import available_backends, load_backend, make_backend, prepare_model
from evalution_training.registry import EVSYS_GROUP

Install = Callable[..., Path]

BACKEND = """
from typing import Any, ClassVar
from pydantic import BaseModel, ConfigDict
from {registry} import register_backend


class FireworksBackendConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    api_key_env: str = "FIREWORKS_API_KEY"
    base_url: str = "https://fireworks.invalid/tinker"


@register_backend("fireworks")
class FireworksBackend:
    name: ClassVar[str] = "fireworks"
    Config: ClassVar[type] = FireworksBackendConfig

    def __init__(self, *, api_key_env: str = "FIREWORKS_API_KEY",
                 base_url: str = "https://fireworks.invalid/tinker") -> None:
        self.api_key_env = api_key_env
        self.base_url = base_url

    def prepare(self, *, model: dict[str, Any], run_dir: str) -> dict[str, Any]:
        import os, tinker
        os.environ[self.api_key_env]
        service_client = tinker.ServiceClient(base_url=self.base_url)
        return {{
            "backend": "tinker",
            "service_client": service_client,
            "model_name": model["name"],
            "renderer_name": model.get("renderer_name"),
            "run_dir": run_dir,
        }}

    def teardown(self, handles: dict[str, Any]) -> None:
        return None
"""
TINKER = """
class ServiceClient:
    def __init__(self, *, base_url):
        self.base_url = base_url
"""
EVSYS = """
registered = {}
def register_backend(name):
    def register(backend):
        registered[name] = backend
        return backend
    return register
"""


@pytest.fixture
def evsys_package(install: Install) -> None:
    modules = {"evsys_sdk/__init__.py": "", "evsys_sdk/registry.py": EVSYS, "tinker.py": TINKER}
    install("evsys-sdk", modules, {})
    source = BACKEND.format(registry="evsys_sdk.registry")
    point = "fireworks = a_plugin_of_evsys:FireworksBackend"
    install("my-backends", {"a_plugin_of_evsys.py": source}, {EVSYS_GROUP: point})


@pytest.fixture
def our_package(install: Install) -> None:
    source = BACKEND.format(registry="evalution_training")
    point = "fireworks = a_plugin_of_ours:FireworksBackend"
    modules = {"a_plugin_of_ours.py": source, "tinker.py": TINKER}
    install("their-backends", modules, {"evalution.training_backends": point})


@pytest.mark.parametrize(
    ("package", "name"),
    [("our_package", "fireworks"), ("evsys_package", f"{EVSYS_GROUP}/fireworks")],
)
def test_a_packaged_backend_prepares_handles(
    package: str,
    name: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request.getfixturevalue(package)
    monkeypatch.setenv("MY_KEY", "k")
    model = {"name": "org/model", "renderer_name": "chatml"}
    params = {"api_key_env": "MY_KEY"}
    with prepare_model(name, model=model, run_dir=tmp_path, params=params) as handles:
        client: Any = handles.pop("service_client")
        assert client.base_url == "https://fireworks.invalid/tinker"
        assert handles == {
            "backend": "tinker",
            "model_name": "org/model",
            "renderer_name": "chatml",
            "run_dir": str(tmp_path),
        }


def test_the_group_of_evsys_is_read_on_request_alone(evsys_package: None) -> None:
    assert "fireworks" not in {entry.name for entry in available_backends()}
    with pytest.raises(ConfigurationError, match="no backend 'fireworks' is installed"):
        load_backend("fireworks")
    assert load_backend(f"{EVSYS_GROUP}/fireworks").name == "fireworks"


def test_a_typo_fails_before_anything_is_constructed(evsys_package: None) -> None:
    kind: Any = load_backend(f"{EVSYS_GROUP}/fireworks")
    made: list[object] = []
    kind.__init__ = lambda self, **params: made.append(params)
    with pytest.raises(ConfigurationError, match="no param 'base_ulr'; did you mean 'base_url'"):
        make_backend(f"{EVSYS_GROUP}/fireworks", {"base_ulr": "https://x.invalid"})
    assert not made


def test_missing_key_is_named(
    our_package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FIREWORKS_API_KEY", raising=False)
    expected = "backend 'fireworks' could not prepare m: KeyError: 'FIREWORKS_API_KEY'"
    with (
        pytest.raises(EngineRuntimeError, match=expected),
        prepare_model("fireworks", model="m", run_dir=tmp_path),
    ):
        raise AssertionError("there are no handles")


def test_a_secret_among_params_is_not_repeated(our_package: None) -> None:
    with pytest.raises(ConfigurationError, match="no param 'api_key'") as raised:
        make_backend("fireworks", {"api_key": "sk-very-secret"})
    assert "sk-very-secret" not in str(raised.value)
