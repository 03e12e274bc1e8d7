"""Options of lm-eval's tasks: of a declaration, and of each suite that it stands for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from evalution.suites.suite import PATH, SuiteDeclaration
from evalution.user_input import find_count_problem

_YAML = (".yaml", ".yml")


def _is_count(value: float) -> bool:
    return value >= 1 and math.isfinite(value) and int(value) == value


@dataclass(kw_only=True)
class LmEvalOptions(SuiteDeclaration):
    """Options as lm-eval's own command has them.

    `tasks` are names of tasks, groups and tags, patterns (`mmlu_*`) or YAML files; `include_path`
    is a folder with more of them, and without `include_defaults` lm-eval's own are left out.
    `num_fewshot` doesn't reach tasks that are declared with 0 solved rows; they are drawn with
    `fewshot_seed`. `gen_kwargs` go over a task's own generation settings. `limit` is at most that
    many rows of each task, or a part of them below 1.0. `bootstrap_iters` are for standard errors
    that have no formula; 0 leaves all standard errors out. `metadata` is for tasks that ask for
    some. Tasks that run code which a model wrote need `confirm_run_unsafe_code`.
    """

    tasks: str | Sequence[str]
    include_path: str | None = field(default=None, metadata=PATH)
    include_defaults: bool = True
    num_fewshot: int | None = None
    fewshot_seed: int = 1234
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool = True
    system_instruction: str | None = None
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limit: int | float | None = None
    bootstrap_iters: int = 100_000
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    confirm_run_unsafe_code: bool = False

    def check_options(self) -> None:
        super().check_options()
        if not self.tasks or "" in self.task_names:
            raise self.wrong("tasks", "must name at least one task, group or tag")
        for option, least in (("num_fewshot", 0), ("bootstrap_iters", 0)):
            value = getattr(self, option)
            if value is not None and (problem := find_count_problem(value, least=least)):
                raise self.wrong(option, problem)
        if self.limit is not None and not (0 < self.limit < 1 or _is_count(self.limit)):
            raise self.wrong(
                "limit", "must be a count of rows above 0, or a part of them below 1.0"
            )
        if self.include_path is not None and not Path(self.include_path).is_dir():
            raise self.wrong("include_path", "must be a folder that is there")
        try:
            json.dumps(dict(self.metadata))
        except (TypeError, ValueError) as error:
            raise self.wrong(
                "metadata", f"must be plain values, as JSON has them ({error})"
            ) from None

    @property
    def task_names(self) -> list[str]:
        return [self.tasks] if isinstance(self.tasks, str) else list(self.tasks)

    @property
    def is_multiturn(self) -> bool:
        """True if shots are turns of their own, which takes a chat."""
        return self.apply_chat_template and self.fewshot_as_multiturn

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, base: Path | None = None) -> Self:
        made = super().from_options(options, base=base)
        if base is not None:
            made.tasks = [
                str(base / name) if name.endswith(_YAML) else name for name in made.task_names
            ]
        return made
