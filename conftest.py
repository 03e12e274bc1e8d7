"""Leaves out the tests of members that this environment lacks, and fails where one is required."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from evalution_core import BaseEngine

# Collecting makes what lives as long as the process does: there is no garbage to look for.
gc.disable()

PACKAGES = Path(__file__).parent / "packages"
MISSING = sorted(
    path.parents[2].name
    for path in PACKAGES.glob("*/src/*/__init__.py")
    if find_spec(path.parent.name) is None
)
collect_ignore = [str(PACKAGES / name) for name in MISSING]

# The first example of a test may import a library, on a machine that does something else besides.
# Where CI is set, hypothesis has a profile of its own, which draws the same examples each time, and
# 100 of them, or 25 with `--hypothesis-profile=again`.
settings.register_profile("local", deadline=None, max_examples=15)
settings.register_profile("again", settings.get_profile("ci"), max_examples=25)
if "CI" not in os.environ:
    settings.load_profile("local")

# A shell that starts the tests in its background lets them ignore Ctrl-C, and every program that
# they start with them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Only tests marked `hub` may reach the network; they take HF_HUB_OFFLINE=0 from the caller.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
# Spinning OpenMP threads of several runtimes slow each other down on a small machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without bytecode, each of some hundred processes compiles what it imports. Who wants none beside
# the sources gets it in a folder of its own.
if sys.dont_write_bytecode and sys.pycache_prefix is None:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parent / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run single files in this process: workers take seconds to start. More take a core each."""
    files = [Path(name.partition("::")[0]) for name in config.args]
    return 0 if all(file.suffix == ".py" for file in files) else None


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collections, which cost 4 % of the processor time."""
    gc.freeze()
    gc.enable()


def pytest_report_header() -> list[str]:
    return [f"members not installed, tests left out: {', '.join(MISSING) or 'none'}"]


def pytest_configure() -> None:
    required = os.environ.get("EVALUTION_REQUIRE", "").split()
    if lost := sorted(name for name in required if name in MISSING or not _installed(name)):
        raise pytest.UsageError(f"required, but not installed: {', '.join(lost)}")


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


@pytest.fixture(scope="session")
def assert_runs_suites() -> Callable[[BaseEngine], None]:
    """Asserts that an engine runs suites of two kinds through `engine.model(…).run(suite)`."""
    from evalution import suites

    def check(engine: BaseEngine) -> None:
        prose = suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=2)
        sums = suites.Generation(
            data="builtin:tiny/sums",
            prompt="Question: {question}\nAnswer:",
            target="answer",
            max_rows=3,
        )
        with engine.model(path="builtin:tiny") as run:
            run.run(prose).run(sums)
        assert [suite.failed for suite in run.result.suites] == [0, 0]
        assert [suite.n for suite in run.result.suites] == [2, 3]

    return check
