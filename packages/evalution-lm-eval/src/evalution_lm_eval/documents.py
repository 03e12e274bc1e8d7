"""Documents of tasks as samples, and their answers as the values that lm-eval sums up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalution.scoring.metrics import Score
from evalution.suites.suite import Sample
from evalution_core import (
    ConfigurationError,
    GenerationOutput,
    LoglikelihoodOutput,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_core.requests import Message, Output, Request
from evalution_lm_eval.loading import KINDS, LoadedTask, LoadedTasks, map_settings
from evalution_lm_eval.options import LmEvalOptions
from evalution_lm_eval.requests import ChatPrompt, make_completion_request, make_scoring_request
from evalution_lm_eval.upstream import Instance

ItemKey = tuple[str, str]
"""A metric's name and its filter's."""


@dataclass(slots=True)
class Document(Sample):
    """A document of a task with lm-eval's requests for it, and the document itself."""

    loaded: LoadedTask
    doc: Any
    instances: Sequence[Instance]

    def score(self, answers: Sequence[Output]) -> Items:
        """Score the answers with the task's own filters and metrics.

        Raises:
            UnsupportedRequestError: a metric needs `is_greedy`, which the engine doesn't report.
        """
        left = iter(answers)
        needs_greedy = self._needs_greedy
        for instance in self.instances:
            responses = [
                _convert_response(next(left), needs_greedy) for _ in range(instance.repeats or 1)
            ]
            instance.resps = responses
            instance.filtered_resps = {}
        filters = self.loaded.task._filters  # pyright: ignore[reportPrivateUsage]
        for ensemble in filters:
            ensemble.apply(list(self.instances))
        items: dict[ItemKey, Any] = {}
        for ensemble in filters:
            results = [instance.filtered_resps[ensemble.name] for instance in self.instances]
            values = self.loaded.task.process_results(self.doc, results)
            items |= {(metric, ensemble.name): value for metric, value in values.items()}
        return Items({}, *self._extract(), task=self.loaded.name, values=items)

    @property
    def _needs_greedy(self) -> bool:
        """True if a score depends on `is_greedy`: of choices, only those with exact match."""
        task = self.loaded.task
        return task.OUTPUT_TYPE != "multiple_choice" or "exact_match" in task.aggregation()

    def _extract(self) -> tuple[str | None, Mapping[str, Any]]:
        """Return the prediction and the extracted values for the sample's line in results."""
        first = self.instances[0]
        if first.request_type == "generate_until":
            return str(first.resps[0]), dict(first.filtered_resps)
        if first.request_type == "loglikelihood_rolling":
            return None, {"logprob": first.resps[0]}
        sums = [instance.resps[0][0] for instance in self.instances]
        choices = _list_choices(self.loaded, self.doc, self.instances)
        # Requests without the context, as acc_mutual_info needs them, come after the choices.
        asked = sums[: len(choices)]
        best = choices[asked.index(max(asked))] if len(asked) > 1 else None
        return best, {"logprobs": sums}


@dataclass(slots=True)
class Items(Score):
    """The values of a document for each metric of its task, as lm-eval's aggregations take them."""

    task: str = ""
    values: Mapping[ItemKey, Any] = field(default_factory=dict[ItemKey, Any])


class Documents:
    """The documents of a suite's tasks as samples; a row's number runs on from task to task."""

    def __init__(self, tasks: LoadedTasks, options: LmEvalOptions):
        self._tasks = tasks
        self._options = options

    def read(self) -> Iterator[Document]:
        """Yield a sample for each document within the limit, each time with its own shots.

        Raises:
            ConfigurationError: while iterating, for a document that asks for another kind of
                request, a prompt that no request can carry, or a setting that no engine can be
                asked.
        """
        offset = 0
        for loaded in self._tasks.tasks:
            yield from self._read_task(loaded, offset)
            offset += loaded.size

    def _read_task(self, loaded: LoadedTask, offset: int) -> Iterator[Document]:
        task = loaded.task
        task.set_fewshot_seed(seed=self._options.fewshot_seed)
        for doc_id, doc in task.doc_iterator(limit=self._find_limit(loaded)):
            instances = self._make_instances(loaded, doc_id, doc)
            requests = [
                request
                for instance in instances
                for request in [self._make_request(loaded, instance)] * (instance.repeats or 1)
            ]
            prompt, target = _read_prompt(instances[0]), _read_target(loaded, doc, instances)
            yield Document(offset + doc_id, prompt, target, requests, loaded, doc, instances)

    def _find_limit(self, loaded: LoadedTask) -> int | None:
        limit = self._options.limit
        if limit is None:
            return None
        return math.ceil(loaded.size * limit) if limit < 1.0 else int(limit)

    def _make_instances(self, loaded: LoadedTask, doc_id: int, doc: Any) -> list[Instance]:
        """As `Task.build_all_requests` (0.4.13) makes them, one document at a time."""
        task, options = loaded.task, self._options
        template = _make_chat_prompt if options.apply_chat_template else None
        context = task.fewshot_context(
            doc,
            num_fewshot=task.get_config("num_fewshot") or 0,
            system_instruction=options.system_instruction,
            apply_chat_template=options.apply_chat_template,
            fewshot_as_multiturn=options.is_multiturn,
            chat_template=template,
            gen_prefix=task.doc_to_prefix(doc),
        )
        made = task.construct_requests(
            doc=doc,
            ctx=context,
            metadata=(loaded.name, doc_id, task.get_config("repeats")),
            apply_chat_template=options.apply_chat_template,
            chat_template=template,
        )
        instances = made if isinstance(made, list) else [made]
        return sorted(instances, key=lambda instance: instance.idx)

    def _make_request(self, loaded: LoadedTask, instance: Instance) -> Request:
        kind = KINDS.get(instance.request_type)
        if kind is not self._tasks.kind:
            raise ConfigurationError(
                f"lm-eval's task {loaded.name!r} asks for {self._tasks.kind.value} and for "
                f"{kind.value if kind else instance.request_type} in one document; run it with "
                "evalution-lm-eval"
            )
        match instance.request_type:
            case "generate_until":
                fields = map_settings(loaded, instance.args[1])
                return make_completion_request(instance.args[0], fields)
            case "loglikelihood_rolling":
                return RollingLoglikelihoodRequest(*instance.args)
            case _:
                return make_scoring_request(*instance.args)


def _make_chat_prompt(
    messages: Sequence[Message], add_generation_prompt: bool = True
) -> ChatPrompt:
    """In place of a chat template: the session has one once the model is loaded."""
    if not add_generation_prompt:
        raise ConfigurationError(
            "the task begins the answer (gen_prefix), which can't be asked with "
            "apply_chat_template here; run it with evalution-lm-eval"
        )
    return ChatPrompt(messages)


def _read_prompt(instance: Instance) -> str | Sequence[Message]:
    if instance.request_type == "loglikelihood_rolling":
        return ""
    context: Any = instance.args[0]
    return context.messages if isinstance(context, ChatPrompt) else context


def _read_target(loaded: LoadedTask, doc: Any, instances: Sequence[Instance]) -> str:
    task = loaded.task
    # Where the choices are contexts, the text of a document is the number of the right one.
    is_input = getattr(task, "multiple_input", 0)
    target = task.doc_to_text(doc) if is_input else task.doc_to_target(doc)
    if isinstance(target, int) and len(instances) > 1:
        choices = _list_choices(loaded, doc, instances)
        return choices[target] if len(choices) > target >= 0 else str(target)
    return str(target)


def _list_choices(loaded: LoadedTask, doc: Any, instances: Sequence[Instance]) -> list[str]:
    """List a document's choices, in the order of its first requests.

    They are the continuations, unless the task names them.
    """
    task = loaded.task
    if task.OUTPUT_TYPE == "multiple_choice" and task.get_config("doc_to_choice") is not None:
        return [str(choice).strip() for choice in task.doc_to_choice(doc)]
    return [instance.args[1].strip() for instance in instances]


def _convert_response(answer: Output, needs_greedy: bool) -> Any:
    """Return an answer as lm-eval's models give it."""
    match answer:
        case GenerationOutput():
            return answer.text
        case RollingLoglikelihoodOutput():
            return answer.logprob
        case LoglikelihoodOutput():
            if answer.is_greedy is None and needs_greedy:
                raise UnsupportedRequestError(
                    "a metric of the task needs is_greedy (the continuation is what greedy "
                    "generation gives), which the engine doesn't report"
                )
            return answer.logprob, bool(answer.is_greedy)
