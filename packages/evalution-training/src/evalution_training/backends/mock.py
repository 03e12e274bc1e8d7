"""The backend `mock`, for tests of what stands around a backend."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from evalution_core import EngineRuntimeError


class MockConfig(BaseModel):
    """`fail_on_prepare`: `prepare` raises."""

    model_config = ConfigDict(extra="forbid")

    fail_on_prepare: bool = False


class MockBackend:
    """Prepares nothing: its handles are what it was given."""

    name: ClassVar[str] = "mock"
    Config: ClassVar[type[BaseModel]] = MockConfig

    def __init__(self, *, fail_on_prepare: bool = False) -> None:
        self.fail_on_prepare = fail_on_prepare

    def prepare(self, *, model: dict[str, Any], run_dir: str) -> dict[str, Any]:
        """Return the stub `{"backend": "mock", "model": …, "run_dir": …}`.

        Raises:
            EngineRuntimeError: it was asked to fail.
        """
        if self.fail_on_prepare:
            raise EngineRuntimeError("backend 'mock' was asked to fail (fail_on_prepare)")
        return {"backend": "mock", "model": model, "run_dir": run_dir}

    def teardown(self, handles: dict[str, Any]) -> None:
        return None
