"""A fake TensorRT-LLM in place of the real one, which needs a GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version

HERE = Path(__file__).parent


Install = Callable[..., ModuleType]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    """Return a function that installs the fake as a release, with a lie or none, and returns it."""
    patch = pytest.MonkeyPatch()

    def install(release: str, lie: str | None = None) -> Any:
        folder = tmp_path_factory.mktemp("site-packages")
        about = folder / f"tensorrt_llm-{release}.dist-info"
        about.mkdir()
        text = f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {release}\n"
        (about / "METADATA").write_text(text, encoding="utf-8")
        patch.syspath_prepend(folder)
        for part in ("fake_trtllm_worker", "fake_trtllm_results"):
            patch.setitem(sys.modules, part, loaded(part))
        fake: Any = loaded("fake_tensorrt_llm")
        fake.results.RELEASE, fake.results.LIE = Version(release), lie
        for name, module in fake.modules():
            patch.setitem(sys.modules, name, module)
        return fake

    yield install
    patch.undo()


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a worker of the fake running."""
    yield
    assert not any(thread.name == "fake TensorRT-LLM" for thread in threading.enumerate())


def loaded(name: str) -> ModuleType:
    spec = spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module
