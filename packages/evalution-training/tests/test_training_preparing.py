"""Params are validated first, handles are torn down once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field

from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    Model,
)
from evalution_training import TrainingModel, make_backend, prepare_model
from evalution_training.models import to_evaluated_model, training_model


class Params(BaseModel):
    """It doesn't forbid extra names by itself."""

    width: int = Field(4, ge=1)
    api_key: str | None = None


class Noting:
    """Notes what happens to it; `fails` names the call that raises."""

    name: ClassVar[str] = "noting"
    Config: ClassVar[type[BaseModel]] = Params

    def __init__(self, fails: str = "", error: Exception | None = None, **params: Any) -> None:
        self.fails, self.error, self.params = fails, error or RuntimeError("it broke"), params
        self.log: list[Any] = []
        self.handles: Any = {"weights": 1}

    def prepare(self, *, model: dict[str, Any], run_dir: str) -> dict[str, Any]:
        self.log.append(("prepare", model, run_dir))
        if self.fails == "prepare":
            raise self.error
        return self.handles

    def teardown(self, handles: dict[str, Any]) -> None:
        self.log.append(("teardown", handles))
        if self.fails == "teardown":
            raise self.error


NOTING = f"{__name__}:Noting"


def test_teardown_gets_the_same_handles_once(tmp_path: Path) -> None:
    backend = Noting()
    with prepare_model(backend, model="m", run_dir=tmp_path) as handles:
        assert handles is backend.handles
    assert [entry[0] for entry in backend.log] == ["prepare", "teardown"]
    assert backend.log[1][1] is backend.handles


def test_failing_body_is_torn_down(tmp_path: Path) -> None:
    backend = Noting(fails="teardown")
    with (
        pytest.raises(ZeroDivisionError) as caught,
        prepare_model(backend, model="m", run_dir=tmp_path),
    ):
        raise ZeroDivisionError
    assert [entry[0] for entry in backend.log] == ["prepare", "teardown"]
    (note,) = caught.value.__notes__
    assert "RuntimeError: it broke" in note


def test_a_failing_prepare_is_not_torn_down(tmp_path: Path) -> None:
    backend = Noting(fails="prepare")
    with (
        pytest.raises(EngineRuntimeError, match="could not prepare m: RuntimeError") as caught,
        prepare_model(backend, model="m", run_dir=tmp_path),
    ):
        raise AssertionError("there are no handles")
    assert [entry[0] for entry in backend.log] == ["prepare"]
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("fails", ["prepare", "teardown"])
def test_key_among_the_params_of_a_spec_is_not_repeated(fails: str, tmp_path: Path) -> None:
    key = "sk-live-0123456789"
    made = TrainingModel(NOTING, "m", {"api_key": key})
    backend: Any = made._backend
    backend.fails, backend.error = fails, RuntimeError(f"401 for key {key}")
    with pytest.raises(EngineRuntimeError, match="401 for key") as caught, made.prepare(tmp_path):
        pass
    assert key not in str(caught.value)


def test_missing_library_is_unavailable(tmp_path: Path) -> None:
    backend = Noting(fails="prepare", error=ModuleNotFoundError("No module named 'trl'"))
    with (
        pytest.raises(EngineUnavailableError, match="No module named 'trl'"),
        prepare_model(backend, model="m", run_dir=tmp_path),
    ):
        raise AssertionError("there are no handles")


def test_failing_teardown_raises(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineRuntimeError, match="'noting': teardown: RuntimeError: it broke"),
        prepare_model(Noting(fails="teardown"), model="m", run_dir=tmp_path),
    ):
        pass


def test_handles_must_be_a_dict(tmp_path: Path) -> None:
    backend = Noting()
    backend.handles = ["model"]
    with (
        pytest.raises(EngineRuntimeError, match=r"must return a dict of handles, got \['model'\]"),
        prepare_model(backend, model="m", run_dir=tmp_path),
    ):
        raise AssertionError("there are no handles")


def test_run_dir_is_created_or_named_in_the_error(tmp_path: Path) -> None:
    with prepare_model("mock", model="m", run_dir=tmp_path / "runs" / "one"):
        assert (tmp_path / "runs" / "one").is_dir()
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(ConfigurationError, match=r"run_dir .*file.* can't be made: .*name another"),
        prepare_model("mock", model="m", run_dir=tmp_path / "file"),
    ):
        raise AssertionError("there are no handles")


def test_params_are_validated_and_filled_with_defaults() -> None:
    backend: Any = make_backend(NOTING, {"width": "7"})
    assert backend.params == {"width": 7, "api_key": None}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"widht": 1}, r"has no param 'widht'; did you mean 'width'\? \(params: width, api_key\)"),
        ({"width": 0}, "param 'width' of backend .*greater than or equal to 1, got 0"),
        ({"api_key": 12345678901}, "param 'api_key' of backend .*valid string$"),
    ],
)
def test_wrong_param_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_backend(NOTING, params)


def test_mock_fails_on_request(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineRuntimeError, match=r"was asked to fail \(fail_on_prepare\)"),
        prepare_model("mock", model="m", run_dir=tmp_path, params={"fail_on_prepare": True}),
    ):
        raise AssertionError("there are no handles")
    with prepare_model("mock", model="m", run_dir=tmp_path) as handles:
        assert handles == {"backend": "mock", "model": {"name": "m"}, "run_dir": str(tmp_path)}


def test_backend_gets_the_declared_model() -> None:
    assert training_model("org/m") == {"name": "org/m"}
    assert training_model(Model("org/m", revision="abc")) == {"name": "org/m", "revision": "abc"}
    assert training_model({"path": "org/m", "renderer_name": None}) == {"name": "org/m"}


def test_checkpoint_is_evaluated_under_the_models_name() -> None:
    declared = training_model({"name": "org/m", "load_checkpoint_path": "out/last"})
    assert to_evaluated_model(declared) == Model("out/last", label="org/m", tokenizer_path="org/m")
    declared = training_model({"name": "org/m", "init_from_checkpoint": "a", "label": "mine"})
    assert to_evaluated_model(declared) == Model("a", label="mine", tokenizer_path="org/m")
    assert to_evaluated_model({"name": "org/m", "renderer_name": "qwen3"}) == Model("org/m")


def test_files_beside_a_spec_are_found(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    found = training_model({"name": "org/m", "load_checkpoint_path": "ckpt"}, tmp_path)
    assert found == {"name": "org/m", "load_checkpoint_path": str(tmp_path / "ckpt")}
    uri = {"name": "org/m", "load_checkpoint_path": "tinker://run/weights/last"}
    assert training_model(uri, tmp_path) == uri
    with pytest.raises(ConfigurationError, match=r"there is no .*gone, which model\.name names"):
        training_model("./gone", tmp_path)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"nmae": "m"}, "model has no field 'nmae'; did you mean 'name'"),
        ({"name": "a", "path": "b"}, "has the name 'a' and the path 'b'; give one"),
        (None, "a backend needs the model's name, got None"),
        ({"name": ""}, "a backend needs the model's name, got ''"),
        (3, "model must be a Model, a mapping or a name, got 3"),
    ],
)
def test_wrong_model_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        training_model(declared)


def test_params_for_a_constructed_backend_are_refused(tmp_path: Path) -> None:
    backend = Noting()
    with (
        pytest.raises(ConfigurationError, match="Noting is made already"),
        prepare_model(backend, model="m", run_dir=tmp_path, params={"width": 2}),
    ):
        pass
    assert backend.log == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (["width"], "params of backend 'mock' must be a mapping of names to values, got a list"),
        ([], "must be a mapping of names to values, got a list"),
        ({3: 1}, "backend 'mock' has no param 3"),
    ],
)
def test_params_must_be_a_mapping_of_names(params: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_backend("mock", params)


@pytest.mark.parametrize("key", ["load_checkpoint_path", "init_from_checkpoint", "renderer_name"])
def test_model_fields_must_be_text(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"model\.{key} must be a non-empty text, got 3"):
        training_model({"name": "m", key: 3})
