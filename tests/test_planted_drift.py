"""A drift that is planted in a copy of a runtime's real source is found, with both places."""

from __future__ import annotations

import importlib
import os
import shutil
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.wide
ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalution" / "upstream"
COMPLETE = "complete"


class Drift(NamedTuple):
    """`old` becomes `new` in a file of the package `source`, and the tool's line has `told`."""

    source: str
    file: str
    old: str
    new: str
    told: str


SGLANG, VLLM = "evalution-sglang", "evalution-vllm"
PLANTED = {
    (SGLANG, "a renamed parameter"): Drift(
        "sglang",
        "srt/entrypoints/engine.py",
        "logprob_start_len: Optional",
        "logprob_start: Optional",
        "Engine.async_generate: no parameter logprob_start_len",
    ),
    (SGLANG, "another default"): Drift(
        "sglang",
        "srt/sampling/sampling_params.py",
        "temperature: float = 1.0",
        "temperature: float = 0.7",
        "default of temperature is 0.7, not 1.0",
    ),
    (SGLANG, "a renamed attribute"): Drift(
        "sglang",
        "srt/managers/tokenizer_manager.py",
        "self.rid_to_state",
        "self.states",
        "TokenizerManager has no rid_to_state",
    ),
    (SGLANG, "a method that isn't awaited any more"): Drift(
        "sglang",
        "srt/managers/tokenizer_control_mixin.py",
        "async def flush_cache",
        "def flush_cache",
        "flush_cache is not async",
    ),
    (SGLANG, "a removed option"): Drift(
        "sglang",
        "srt/arg_groups/fields/schedule.py",
        "    mem_fraction_static:",
        "    memory_fraction:",
        "Schedule has no field mem_fraction_static",
    ),
    (SGLANG, "a moved class"): Drift(
        "sglang",
        "srt/utils/watchdog.py",
        "class SubprocessWatchdog",
        "class Watcher",
        "there is no sglang.srt.utils.watchdog.SubprocessWatchdog",
    ),
    (VLLM, "a result that moved"): Drift(
        "vllm",
        "outputs.py",
        "self.prompt_logprobs",
        "self.rows",
        "vllm.outputs.RequestOutput has no prompt_logprobs",
    ),
    (VLLM, "a new required parameter"): Drift(
        "vllm",
        "v1/engine/llm_engine.py",
        "arrival_time: float | None = None,",
        "arrival_time: float,",
        "LLMEngine.add_request: parameter arrival_time is required",
    ),
}


class Copy(NamedTuple):
    """A member of its own, held against the newest of its releases, whose source may be changed."""

    packages: Path
    cache: Path
    release: str


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Copy]:
    """A function from a member to its copy; the files of the source are linked."""

    @cache
    def copied(member: str) -> Copy:
        text = (ROOT / "packages" / member / "pyproject.toml").read_text(encoding="utf-8")
        release: str = tomllib.loads(text)["tool"]["evalution"]["upstream"][-1]
        if not (CACHE / release / COMPLETE).is_file():
            pytest.skip(f"{release} isn't unpacked: tools/check_upstream_api.py {member}")
        folder = tmp_path_factory.mktemp(member)
        copy = folder / "packages" / member
        shutil.copytree(ROOT / "packages" / member / "src", copy / "src")
        listed = f'[tool.evalution]\nupstream = ["{release}"]\n'
        (copy / "pyproject.toml").write_text(listed, encoding="utf-8")
        shutil.copytree(CACHE / release, folder / "cache" / release, copy_function=os.symlink)
        return Copy(copy.parent, folder / "cache", release)

    return copied


@contextmanager
def planted(copied: Copy, drift: Drift) -> Generator[None]:
    file = copied.cache / copied.release / drift.source / drift.file
    text = file.read_text(encoding="utf-8")
    assert drift.old in text
    original = file.readlink()
    file.unlink()
    file.write_text(text.replace(drift.old, drift.new), encoding="utf-8")
    try:
        yield
    finally:
        file.unlink()
        file.symlink_to(original)


@pytest.mark.parametrize(
    ("member", "drift"),
    [(member, drift) for (member, _), drift in PLANTED.items()],
    ids=map(" ".join, PLANTED),
)
def test_planted_drift_is_reported_with_file_and_line(
    copies: Callable[[str], Copy],
    member: str,
    drift: Drift,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copied = copies(member)
    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = importlib.import_module("check_upstream_api")
    given = ["--packages", str(copied.packages), "--cache", str(copied.cache), member]

    with planted(copied, drift):
        assert tool.main(given) == 1

    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if drift.told in line]
    assert found, lines
    place = f"{member}/src/{member.replace('-', '_')}/upstream.py:"
    assert all(line.startswith(place) and f": {copied.release}" in line for line in found)
