"""Inspect itself, with real engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution_core.builtins import builtin_path

Evaluate = Callable[..., Any]


def _rows(name: str) -> list[dict[str, Any]]:
    """Rows that come with the tiny model."""
    file = builtin_path("builtin:tiny", f"rows/{name}")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def tiny_rows() -> Callable[[str], list[dict[str, Any]]]:
    return _rows


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """Run a task as `inspect eval` does, and give its log."""
    from inspect_ai import eval as run

    def evaluated(task: Any, model: str = "evalution/builtin:tiny", **options: Any) -> Any:
        given = {"engine": "Reference", **options.pop("model_args", {})}
        (log,) = run(
            task,
            model=model,
            model_args=given,
            log_dir=str(tmp_path / "logs"),
            display="none",
            max_retries=0,
            **options,
        )
        return log

    return evaluated
