"""The installed TensorRT-LLM: its import, versions, install hint, environment variables, scores.

Releases differ in where they report the log-probabilities of a prompt's tokens. Entry i of
`prompt_logprobs` is computed from the row of logits after prompt token i, so it ranks candidates
for token i + 1. Beyond the K likeliest it has one more token or none:

- up to about 1.3.0rc5, in 1.2 too: none. A token that isn't among the K likeliest has no value.
- then, to 1.3.0rc10: token i itself, about which that row says nothing (pull request 11235).
- from 1.3.0rc11 on: token i + 1, in the last entry the first generated one (12499, March 2026).

So before 1.3.0rc11 the rows of logits themselves are read. The version decides, and the session's
self check tries it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from packaging.specifiers import SpecifierSet

from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import (
    describe_distribution,
    linux_install_hint,
    process_environment,
    require_linux,
)

VERSIONS = ">=1.2,<1.4"
DISTRIBUTION = "tensorrt-llm"

_QUIET = {"TLLM_LOG_LEVEL": "warning"}
_PRIVATE = {"TRTLLM_NO_USAGE_STATS": "1"}
_PARTS = ("llmapi.llm_args", "executor.utils")
_HAS_NEXT_TOKEN = SpecifierSet(">=1.3.0rc11")
_PYTHON = (3, 12)
"""The only Python of a wheel that Evalution runs on too; the other one is 3.10."""


@contextmanager
def runtime_environment() -> Generator[None]:
    """Set the environment in which the runtime is imported and started.

    It sends no usage statistics, logs warnings unless the caller has asked for more, and prints to
    standard error, because standard output is for results. Afterwards the process environment is
    what it was; processes started meanwhile keep theirs.
    """
    with process_environment(_PRIVATE, defaults=_QUIET), redirect_stdout(sys.stderr):
        yield


def import_tensorrt_llm() -> ModuleType:
    """Import `tensorrt_llm`.

    Raises:
        EngineUnavailableError: it is missing, out of range or broken, or this is not Linux.
    """
    require_linux("TensorRT-LLM")
    with runtime_environment():
        module = import_runtime(
            "tensorrt_llm", VERSIONS, distributions=(DISTRIBUTION,), install=install_hint()
        )
        for part in _PARTS:
            import_module(f"tensorrt_llm.{part}")
    return module


def installed_version() -> str:
    """Return the version number of the installed distribution.

    Raises:
        PackageNotFoundError: there is none.
    """
    return version(DISTRIBUTION)


def describe_version() -> str:
    """Return the distribution and its version, as in `tensorrt-llm 1.2.1`."""
    return describe_distribution(DISTRIBUTION)


def install_hint() -> str:
    """Return the command that installs a TensorRT-LLM for this machine and Python."""
    command = (
        f'pip install "{DISTRIBUTION}{VERSIONS}", on a machine with an NVIDIA GPU and Open MPI\'s '
        f"libraries"
    )
    return linux_install_hint("TensorRT-LLM", command, lowest=_PYTHON, highest=_PYTHON)


class ScoreSource(StrEnum):
    """The part of a result that scores are read from."""

    PROMPT_LOGPROBS = "prompt log-probabilities"
    """The whole sequence is fed, the last token too, and a token is generated after it."""
    CONTEXT_LOGITS = "context logits"
    """All but the last token are fed, and a token is generated in the last one's place."""

    @property
    def spare(self) -> int:
        """The number of tokens that a scored sequence takes beyond those that score it."""
        return 2 if self is ScoreSource.PROMPT_LOGPROBS else 1


def choose_score_source(version: str) -> ScoreSource:
    """Return where a release, `1.2.1` or `1.3.0rc11` say, reports the scores of a prompt."""
    if _HAS_NEXT_TOKEN.contains(version, prereleases=True):
        return ScoreSource.PROMPT_LOGPROBS
    return ScoreSource.CONTEXT_LOGITS
