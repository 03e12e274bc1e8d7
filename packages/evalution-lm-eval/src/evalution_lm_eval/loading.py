"""Tasks of lm-eval by name: found, loaded, and set up as its own evaluation does it."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from evalution.error_boundary import wrap_errors
from evalution.yaml_spec.yaml_file import read_yaml
from evalution_core import Capability, ConfigurationError, UnsupportedRequestError
from evalution_core.kinds import RequestKind
from evalution_core.plugins import did_you_mean
from evalution_lm_eval.options import LmEvalOptions
from evalution_lm_eval.requests import map_generation_settings
from evalution_lm_eval.upstream import Group, Sampler, Task, TaskManager

KINDS = {
    "loglikelihood": RequestKind.LOGLIKELIHOOD,
    "multiple_choice": RequestKind.LOGLIKELIHOOD,
    "loglikelihood_rolling": RequestKind.ROLLING,
    "generate_until": RequestKind.GENERATION,
}
"""The kind of request for each output type of a task or request type of an instance."""

_RANDOM_SEED, _NUMPY_SEED = 0, 1234
"""lm-eval's own, which tasks may draw from while they are loaded."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task, and how many documents it has before any limit.

    `declared` are its metrics before any answer, which may bring others.
    """

    name: str
    task: Task
    size: int
    declared: Sequence[str]


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """The tasks of one suite: a task, or all tasks of a group whose scores lm-eval sums up.

    `groups` are those with scores of their own, the outermost first.
    """

    name: str
    kind: RequestKind
    tasks: Sequence[LoadedTask]
    groups: Sequence[Group] = ()

    @property
    def needs(self) -> frozenset[Capability]:
        """The capabilities that their generation settings need in addition to the kind of request.

        Raises:
            ConfigurationError: a setting that no engine can be asked.
        """
        if self.kind is not RequestKind.GENERATION:
            return frozenset()
        settings = [
            map_settings(loaded, loaded.task.get_config("generation_kwargs") or {})
            for loaded in self.tasks
        ]
        wanted = {
            Capability.SAMPLING: any(fields["do_sample"] for fields in settings),
            Capability.SEED: any(fields.get("seed") is not None for fields in settings),
            Capability.BEAMS: any(fields.get("num_beams", 1) > 1 for fields in settings),
        }
        return frozenset(capability for capability, is_wanted in wanted.items() if is_wanted)


def map_settings(loaded: LoadedTask, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a generation request for settings of a task, or of one document.

    Raises:
        ConfigurationError: a setting that no engine can be asked.
    """
    try:
        with wrap_errors("generation_kwargs", ConfigurationError):
            return map_generation_settings(given)
    except ConfigurationError as error:
        error.args = (f"lm-eval's task {loaded.name!r}: {error}",)
        raise


def load_tasks(options: LmEvalOptions) -> list[LoadedTasks]:
    """Load the named tasks, groups and tags, in their order.

    A group without scores of its own stands for its members.

    Raises:
        ConfigurationError: a name is unknown (with the nearest one), a task can't be loaded, runs
            foreign code without consent, or asks for several kinds of request at once.
        UnsupportedRequestError: a task needs images or audio.
    """
    manager = _index_tasks(
        options.include_path,
        options.include_defaults,
        json.dumps(dict(options.metadata)),
        _list_files(options.include_path),
    )
    found: list[LoadedTasks] = []
    for name in _resolve_names(manager, options.task_names):
        with wrap_errors(f"lm-eval can't load task {name!r}", ConfigurationError), _lm_eval_seeds():
            loaded = manager.load(name)
        groups: Mapping[str, Group] = loaded["groups"]
        members = [groups[name]] if name in groups else list(loaded["tasks"].values())
        for member in members:
            found += _load_member(member, options)
    return found


def _resolve_names(manager: TaskManager, named: Sequence[str]) -> list[str]:
    known = manager.all_tasks
    found: list[str] = []
    for name in named:
        matching = sorted(manager.match_tasks([name])) if "*" in name else [name]
        is_file = name.endswith((".yaml", ".yml"))
        if is_file:
            _check_file(name)
        if not matching or (not is_file and not set(matching) <= set(known)):
            raise ConfigurationError(
                f"lm-eval has no task, group or tag {name!r}{did_you_mean(name, known)} (`lm_eval "
                "ls tasks` lists its own; include_path names a folder with more)"
            )
        found += matching
    return list(dict.fromkeys(found))


def _check_file(name: str) -> None:
    """Refuse a file of which lm-eval 0.4.13 makes no task."""
    path = Path(name)
    if not path.is_file():
        raise ConfigurationError(f"there is no task file {name}")
    try:
        declared = read_yaml(path)
    except ConfigurationError:
        return  # a `!function` among it, or no YAML at all, which lm-eval reports
    if isinstance(declared, dict) and "group" in declared and "class" not in declared:
        raise ConfigurationError(
            f"{name} declares the group {declared['group']!r}, and lm-eval takes a file in tasks "
            f"for one task alone; set tasks to {declared['group']!r} and include_path to the "
            f"folder {path.parent}"
        )


def _load_member(member: Any, options: LmEvalOptions) -> list[LoadedTasks]:
    if not isinstance(member, import_module("lm_eval.api.group").Group):
        loaded = _prepare_task(member, options)
        return [LoadedTasks(loaded.name, _find_kind(loaded), [loaded])]
    group: Any = member
    if not group.has_aggregation:
        return [found for child in group for found in _load_member(child, options)]
    return [_load_group(group, options)]


def _load_group(group: Group, options: LmEvalOptions) -> LoadedTasks:
    # Subgroups may share a task, which lm-eval evaluates once: as the last of them has it.
    members = {task.task_name: task for task in group.get_all_tasks()}
    tasks = [_prepare_task(task, options) for task in members.values()]
    kinds = {_find_kind(loaded): loaded.name for loaded in tasks}
    if len(kinds) > 1:
        listed = ", ".join(f"{name} for {kind.value}" for kind, name in kinds.items())
        raise ConfigurationError(
            f"group {group.name!r} sums up tasks that ask for different kinds of request "
            f"({listed}); name its tasks in place of it, or run it with evalution-lm-eval"
        )
    inner = [one for one in group.get_all_groups() if one.has_aggregation]
    return LoadedTasks(group.name, next(iter(kinds)), tasks, [group, *inner])


def _prepare_task(task: Task, options: LmEvalOptions) -> LoadedTask:
    """Set a task up, if it can run at all."""
    name = task.task_name
    # lm-eval marks such tasks by an attribute that others don't have.
    if getattr(task, "MULTIMODAL", False):
        raise UnsupportedRequestError(
            f"lm-eval's task {name!r} asks with images or audio, which no request here carries"
        )
    if getattr(task, "UNSAFE_CODE", False) and not options.confirm_run_unsafe_code:
        raise ConfigurationError(
            f"lm-eval's task {name!r} runs code that the model wrote, on this machine; say "
            "confirm_run_unsafe_code: true to allow it"
        )
    with wrap_errors(f"lm-eval's task {name!r}", ConfigurationError):
        _set_up(task, options)
        _check_solved_rows(task)
        return LoadedTask(name, task, len(task.eval_docs), tuple(task.aggregation()))


def _set_up(task: Task, options: LmEvalOptions) -> None:
    """As `lm_eval.simple_evaluate` (0.4.13) does it with its arguments."""
    if options.gen_kwargs and task.get_config("output_type") == "generate_until":
        task.set_config("generation_kwargs", dict(options.gen_kwargs), update=True)
    declared = task.get_config("num_fewshot")
    if options.num_fewshot is not None and declared != 0:
        task.set_config("num_fewshot", options.num_fewshot)
    elif declared is None:
        task.set_config("num_fewshot", 0)
    task.set_fewshot_seed(seed=options.fewshot_seed)


def _check_solved_rows(task: Task) -> None:
    """Refuse more of them than the task has; a sampler of the task's own knows for itself."""
    configurable: Any = import_module("lm_eval.api.task").ConfigurableTask
    samplers: Any = import_module("lm_eval.api.samplers")
    asked = task.get_config("num_fewshot")
    if not asked or not isinstance(task, configurable):
        return
    sampler: Sampler = cast(Any, task).sampler
    if type(sampler) not in samplers.SAMPLER_REGISTRY.values():
        return
    # Where solved rows are among those that are evaluated, the one that is asked is left out. Of a
    # task that names neither split, lm-eval 0.4.13 takes the same for granted, but `first_n` looks.
    split = task.get_config("fewshot_config").split
    is_shared = split == task.get_config("test_split")
    if split is None and type(sampler) is samplers.FirstNSampler:
        is_shared = False
    possible = max(len(sampler.df) - is_shared, 0)
    if asked > possible:
        except_asked = " without the row that is asked" if is_shared else ""
        raise ConfigurationError(
            f"lm-eval's task {task.task_name!r} is asked with num_fewshot={asked} solved rows, and "
            f"has {possible} to draw from{except_asked}; set num_fewshot to at most {possible}"
        )


def _find_kind(loaded: LoadedTask) -> RequestKind:
    asked = loaded.task.OUTPUT_TYPE
    if asked not in KINDS:
        raise ConfigurationError(
            f"lm-eval's task {loaded.name!r} has the output type {asked!r}, which says nothing of "
            f"its requests (known: {', '.join(KINDS)}); run it with evalution-lm-eval"
        )
    return KINDS[asked]


def _list_files(include_path: str | None) -> tuple[tuple[str, int], ...]:
    """List the YAML files below a folder, and when each was changed."""
    found = Path(include_path).glob("**/*.yaml") if include_path else ()
    return tuple(sorted((str(path), path.stat().st_mtime_ns) for path in found if path.exists()))


@lru_cache(maxsize=4)
def _index_tasks(
    include_path: str | None,
    include_defaults: bool,
    metadata: str,
    files: tuple[tuple[str, int], ...],
) -> TaskManager:
    """The index of all tasks, which takes seconds to make for lm-eval's 14,000 files.

    Once `files` are others, or have changed, there is another.
    """
    return import_module("lm_eval.tasks").TaskManager(
        include_path=include_path,
        include_defaults=include_defaults,
        metadata=json.loads(metadata),
    )


@contextmanager
def _lm_eval_seeds() -> Generator[None]:
    """Use lm-eval's seeds while a task is loaded; the caller's state comes back."""
    import numpy as np  # noqa: PLC0415 - lm-eval's own

    before, before_numpy = random.getstate(), np.random.get_state()
    random.seed(_RANDOM_SEED)
    np.random.seed(_NUMPY_SEED)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)
