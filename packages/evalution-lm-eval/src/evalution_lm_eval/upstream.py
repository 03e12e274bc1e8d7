"""lm-eval's API as Protocols, since it comes without types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol


class Instance(Protocol):
    """One request of a document; `args` is what the model's method of `request_type` takes."""

    resps: list[Any]
    filtered_resps: dict[str, Any]

    @property
    def request_type(self) -> str: ...
    @property
    def idx(self) -> int: ...
    @property
    def doc_id(self) -> int | None: ...
    @property
    def task_name(self) -> str | None: ...
    @property
    def repeats(self) -> int | None: ...
    @property
    def args(self) -> tuple[Any, ...]: ...


class CacheHook(Protocol):
    """The cache of answers; `dbdict` is None unless lm-eval caches."""

    dbdict: Any

    def add_partial(self, attr: str, req: Any, res: Any) -> None: ...


class FilterEnsemble(Protocol):
    name: str

    def apply(self, instances: list[Instance]) -> None: ...


class TaskConfig(Protocol):
    def to_dict(self, keep_callable: bool = False) -> Mapping[str, Any]: ...


class Sampler(Protocol):
    """Draws shots from `df`."""

    df: Sequence[Any]


class Task(Protocol):
    VERSION: Any
    DATASET_PATH: str | None
    DATASET_NAME: str | None
    OUTPUT_TYPE: str | None
    _filters: list[FilterEnsemble]

    @property
    def config(self) -> TaskConfig: ...
    @property
    def task_name(self) -> str: ...
    @property
    def eval_docs(self) -> Sequence[Any]: ...
    def get_config(self, key: str) -> Any: ...
    def set_config(self, key: str, value: Any, update: bool = False) -> None: ...
    def set_fewshot_seed(self, seed: int | None = None) -> None: ...
    def doc_iterator(self, *, limit: int | None = None) -> Iterator[tuple[int, Any]]: ...
    def doc_to_prefix(self, doc: Any) -> Any: ...
    def doc_to_text(self, doc: Any) -> Any: ...
    def doc_to_choice(self, doc: Any) -> Sequence[Any]: ...
    def doc_to_target(self, doc: Any) -> Any: ...
    def fewshot_context(self, doc: Any, **options: Any) -> Any: ...
    def construct_requests(
        self, doc: Any, ctx: Any, **options: Any
    ) -> Instance | list[Instance]: ...
    def process_results(self, doc: Any, results: list[Any]) -> Mapping[str, Any]: ...
    def aggregation(self) -> Mapping[str, Callable[[Sequence[Any]], Any]]: ...
    def higher_is_better(self) -> Mapping[str, bool | None]: ...


class AggregatedMetric(Protocol):
    metric: str
    weight_by_size: bool


class Group(Protocol):
    name: str
    aggregate_metric_list: Sequence[AggregatedMetric] | None

    @property
    def child_names(self) -> list[str]: ...
    @property
    def has_aggregation(self) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    def get_all_tasks(self) -> list[Task]: ...
    def get_all_groups(self) -> list[Group]: ...
    def aggregate(self, task_metrics: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]: ...


Aggregation = Callable[[Sequence[Any]], Any]


class Metrics(Protocol):
    """Aggregations over the values of documents, and their standard errors."""

    mean: Aggregation
    perplexity: Aggregation
    weighted_perplexity: Aggregation
    bits_per_byte: Aggregation
    f1_score: Aggregation
    matthews_corrcoef: Aggregation

    def stderr_for_metric(
        self, metric: Aggregation, bootstrap_iters: int
    ) -> Aggregation | None: ...


def upstream_metrics() -> Metrics:
    """lm-eval's module, which takes seconds to import."""
    module: Any = import_module("lm_eval.api.metrics")
    return module


class TaskManager(Protocol):
    @property
    def all_tasks(self) -> list[str]: ...
    def match_tasks(self, task_list: list[str]) -> list[str]: ...
    def load(self, task_list: str) -> Mapping[str, Any]: ...
