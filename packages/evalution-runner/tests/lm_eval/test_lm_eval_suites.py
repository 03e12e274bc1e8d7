"""Every named suite against lm-evaluation-harness's own task object, on the same rows.

Both sides ask one fake model. What is deliberately different is in `DIFFERENCES`, and nothing else
may be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evalution.rows.local import Row
from evalution.scoring.extraction import ChoiceFinder, NumberFinder, PhraseFinder, WordOrder
from evalution.scoring.filters import Regex
from evalution.scoring.metrics import Estimate, Mean, Measure
from evalution.suites.discovery import load_suite
from evalution.suites.tasks.bbh import TASKS
from evalution_core import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
)

pytest.importorskip("lm_eval", reason="needs the environment lm-eval of tools/envs")

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("default")]

ROWS = Path(__file__).parents[1] / "data" / "rows"
LEAST_ROWS = 20
MOST_SHOTS = 3
LEAK = "lambada_openai"
DIFFERENCES = {
    LEAK: "solved rows are drawn from the evaluated ones, and where lm-eval draws the question "
    "itself, with its answer, another row stands in its place",
}
GLUE = ["sst2", "cola", "mrpc", "qqp", "qnli", "rte", "wnli", "mnli"]
CHOICES = ["hellaswag", "piqa", "arc_easy", "arc_challenge", "winogrande", "boolq"]
SUMS = ["gsm8k", "gsm8k_platinum"]
WORKED = [f"{task}_{way}" for task in SUMS for way in ("cot", "cot_llama")]
STEPWISE = [f"{task}_cot_zeroshot" for task in SUMS]
SUBJECTS = ["stem.abstract_algebra", "humanities.high_school_european_history", "other.virology"]
GPQA = ("zeroshot", "n_shot", "cot_zeroshot", "cot_n_shot", "generative_n_shot")
SHOTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys([*GLUE, *CHOICES, "lambada_openai", "lambada_standard"], (0, 1, MOST_SHOTS)),
    **dict.fromkeys([*SUMS, *STEPWISE], (0, 5)),
    **dict.fromkeys(WORKED, (0, 8)),
    "wikitext": (0,),
    **{f"gpqa_diamond_{way}": (0, 2) for way in GPQA},
    **{f"gpqa_{rows}_{way}": (2,) for rows in ("main", "extended") for way in GPQA},
    **dict.fromkeys(["truthfulqa_mc1", "truthfulqa_mc2"], (0, MOST_SHOTS)),
    "drop": (0,),  # lm-eval's solved rows end in names of columns, in place of an answer
}
LAW, SCIENCE = "law", "computer_science"
BBH = [path.name for path in sorted((ROWS / "bbh").iterdir())]
WAYS = {
    "bbh": "bbh_cot_fewshot",
    "bbh_fewshot": "bbh_fewshot",
    "bbh_zeroshot": "bbh_zeroshot",
    "bbh_cot_zeroshot": "bbh_cot_zeroshot",
}
"""Ours by name, and theirs."""
PARTS = [
    *(("mmlu", subject, f"mmlu_{subject.partition('.')[2]}", (0, 5)) for subject in SUBJECTS),
    *(("mmlu_pro", category, f"mmlu_pro_{category}", (0, 5)) for category in (LAW, SCIENCE)),
    *(
        (way, task, f"{WAYS[way]}_{task}", (3,) if WAYS[way].endswith("_fewshot") else (0,))
        for way in WAYS
        for task in BBH
    ),
]
CHATS = ("mmlu", "mmlu_pro", "word_sorting")
"""Suites and subsets that are asked in a chat too; the others of BBH have the same messages."""
ALL = [
    (task, shots, chat)
    for task, numbers in SHOTS.items()
    for shots in numbers
    for chat in (False, True)
    # The sets of GPQA differ in their rows alone.
    if not (chat and task.startswith(("gpqa_main", "gpqa_extended")))
]


@dataclass(frozen=True)
class OurRun:
    """What our suite asked for each row, in lm-eval's form, and what it made of the answers."""

    requests: list[list[tuple[Any, ...]]]
    measures: list[Mapping[str, Measure]]
    scores: Mapping[str, Estimate]


def suite_of(name: str, **options: Any) -> Any:
    return load_suite(name)(**options)


def run_ours(suite: Any, model: Any, render: Callable[..., str]) -> OurRun:
    requests: list[list[tuple[Any, ...]]] = []
    measures: list[Mapping[str, Measure]] = []
    for sample in suite.samples():
        pairs = [ask(request, model, render) for request in sample.requests]
        requests.append([asked for asked, _ in pairs])
        measures.append(suite.score(sample, [answer for _, answer in pairs]).measures)
    scores = {
        name: metric.estimate([measure[name] for measure in measures])
        for name, metric in suite.make_metrics().items()
    }
    return OurRun(requests, measures, scores)


def ask(request: Any, model: Any, render: Callable[..., str]) -> tuple[tuple[Any, ...], Any]:
    match request:
        case GenerationRequest():
            context = render(request.messages) if request.messages else request.prompt or ""
            wanted = (list(request.stop), request.max_new_tokens, request.do_sample)
            answer = GenerationOutput(context, model.completion(context))
            return (context, wanted), answer
        case LoglikelihoodRequest():
            context = render(request.messages) if request.messages else request.context
            logprob, is_greedy = model.loglikelihood(context, request.continuation)
            return (context, request.continuation), LoglikelihoodOutput(logprob, is_greedy, 1)
        case _:
            answer = RollingLoglikelihoodOutput(model.rolling(request.text), 1)
            return (request.text,), answer


def their_arguments(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """With what lm-eval's models make of `generation_kwargs` where it leaves things open."""
    from lm_eval.models.utils import normalize_gen_kwargs

    if not isinstance(arguments[-1], dict):
        return arguments
    wanted = normalize_gen_kwargs(arguments[-1])
    return arguments[0], (wanted["until"], wanted["max_gen_toks"], wanted["do_sample"])


def their_measure(name: str, value: Any) -> Measure:
    """A sample's value in lm-eval, as a measure of ours."""
    if name in ("f1", "mcc") and isinstance(value, tuple):
        right, predicted = value
        return Measure(predicted, right)
    return Measure(*value) if isinstance(value, tuple) else Measure(value)


def check_requests(ours: OurRun, theirs: Any, different: Collection[int]) -> None:
    assert len(ours.requests) == len(theirs.requests) >= LEAST_ROWS
    for row, (asked, wanted) in enumerate(zip(ours.requests, theirs.requests, strict=True)):
        if row not in different:
            assert asked == [their_arguments(arguments) for arguments in wanted], f"row {row}"


def is_leak(run: Any, row: int) -> bool:
    """Whether the question of a row stands before itself, solved."""
    ((context, word),) = run.requests[row]
    if context.endswith("<assistant>"):
        return f"{context[context.rindex('<user>') :]}{word}</>" in context
    *solved, own = context.split("\n\n")
    return f"{own} {word}" in solved


def check_measures(ours: OurRun, theirs: Any, different: Collection[int]) -> None:
    for sample in theirs.samples:
        for name in sample["metrics"]:
            if (row := sample["doc_id"]) not in different:
                measure = ours.measures[row][our_name(name, sample["filter"])]
                assert measure == pytest.approx(their_measure(name, sample[name])), f"row {row}"


def check_scores(suite: Any, ours: OurRun, theirs: Any) -> None:
    compared = set[str]()
    for key, value in theirs.scores.items():
        name, _, pipeline = key.partition(",")
        if not pipeline or value == "N/A":
            continue
        metric = our_name(name.removesuffix("_stderr"), pipeline)
        found = ours.scores[metric]
        if not name.endswith("_stderr"):
            assert found.value == pytest.approx(value), key
            assert suite.make_metrics()[metric].higher_is_better == theirs.higher_is_better[name]
            compared.add(metric)
        elif isinstance(suite.make_metrics()[metric], Mean):  # the others are bootstrapped there
            assert found.stderr == pytest.approx(value), key
    assert compared == set(suite.make_metrics())


def our_name(metric: str, pipeline: str) -> str:
    return metric if pipeline == "none" else f"{metric},{pipeline}"


def check_variety(runs: Sequence[OurRun]) -> None:
    """Else equal scores would say little: all rows right, or all wrong."""
    for name in runs[0].scores:
        assert len({measure[name] for run in runs for measure in run.measures}) > 1


def rows_of(task: str) -> str:
    return next(
        (name for name in ("gpqa", "truthfulqa") if name in task), task.partition("_cot")[0]
    )


@pytest.mark.parametrize(("task", "shots", "chat"), ALL)
def test_a_suite_asks_and_scores_as_lm_eval(
    task: str,
    shots: int,
    chat: bool,
    their_run: Callable[..., Any],
    fake_model: Callable[[int], Any],
    chat_template: Callable[..., str],
) -> None:
    options = {"num_fewshot": shots, "apply_chat_template": chat} if task != "wikitext" else {}
    runs: list[OurRun] = []
    for seed in (1234, 7):
        seeded = {"fewshot_seed": seed} if options else {}
        suite = suite_of(task, data=ROWS / rows_of(task), **options, **seeded)
        ours = run_ours(suite, fake_model(seed), chat_template)
        theirs = their_run(task, rows_of(task), fake_model(seed), shots=shots, seed=seed, chat=chat)
        rows = range(len(theirs.requests))
        different = [row for row in rows if task in DIFFERENCES and is_leak(theirs, row)]
        check_requests(ours, theirs, different)
        check_measures(ours, theirs, different)
        if not different:
            check_scores(suite, ours, theirs)
        assert suite.title == task
        assert getattr(suite_of(task), "num_fewshot", 0) == theirs.default_shots
        assert (suite.dataset.path, suite.dataset.name) == theirs.dataset
        runs.append(ours)
    check_variety(runs)


def test_a_question_is_never_its_own_example(
    their_run: Callable[..., Any],
    fake_model: Callable[[int], Any],
    chat_template: Callable[..., str],
) -> None:
    model = fake_model(0)
    theirs = their_run(LEAK, LEAK, model, shots=MOST_SHOTS, seed=1234, chat=False)
    suite = suite_of(LEAK, data=ROWS / LEAK, num_fewshot=MOST_SHOTS)
    ours = run_ours(suite, model, chat_template)
    leaks = [row for row in range(len(theirs.requests)) if is_leak(theirs, row)]
    assert leaks
    assert [row for row in leaks if is_leak(ours, row)] == []


@pytest.mark.parametrize(
    ("name", "subset", "task", "shots", "chat"),
    [
        (*part, shots, chat)
        for *part, both in PARTS
        for shots in both
        for chat in (False, True)
        if not chat or {part[0], part[1]} & set(CHATS)
    ],
)
def test_a_subset_asks_and_scores_as_lm_eval(
    name: str,
    subset: str,
    task: str,
    shots: int,
    chat: bool,
    their_run: Callable[..., Any],
    fake_model: Callable[[int], Any],
    chat_template: Callable[..., str],
) -> None:
    rows, child = name.partition("_")[0] if name in WAYS else name, subset.rpartition(".")[2]
    folder = rows if rows == "mmlu_pro" else f"{rows}/{child}"
    runs: list[OurRun] = []
    for seed in (3, 4):
        suite = suite_of(
            name, data=ROWS / rows, subsets=subset, num_fewshot=shots, apply_chat_template=chat
        )
        ours = run_ours(suite, fake_model(seed), chat_template)
        theirs = their_run(task, folder, fake_model(seed), shots=shots, seed=1234, chat=chat)
        check_requests(ours, theirs, ())
        check_measures(ours, theirs, ())
        for key, value in theirs.scores.items():
            metric, _, pipeline = key.partition(",")
            if pipeline:
                of_all = our_name(metric.removesuffix("_stderr"), pipeline)
                found = ours.scores[of_all]
                assert found == ours.scores[f"{of_all},{subset}"]
                ours_is = found.stderr if metric.endswith("_stderr") else found.value
                assert ours_is == pytest.approx(value), key
        assert suite_of(name).num_fewshot == theirs.default_shots
        runs.append(ours)
    check_variety(runs)


def test_all_subjects_of_mmlu_are_declared_as_in_lm_eval(mmlu_configs: Sequence[Any]) -> None:
    theirs = {
        f"{config['tag'].removeprefix('mmlu_').removesuffix('_tasks')}.{config['task_alias']}": (
            *(config[key] for key in ("dataset_path", "dataset_name", "test_split")),
            *(config[key] for key in ("fewshot_split", "description")),
        )
        for config in mmlu_configs
    }
    suite = suite_of("mmlu")
    ours = {}
    for part in suite.splits():
        text = suite.description_text(Row(0, "row 0", {}, part.name))
        rows, solved = part.rows, part.fewshot
        ours[part.name] = (rows.path, rows.config, rows.split, solved.split, text)
    assert len(theirs) == 57
    assert ours == theirs


def test_all_tasks_of_bbh_are_declared_as_in_lm_eval(
    bbh_configs: Mapping[tuple[str, str], Mapping[str, Any]],
) -> None:
    """Tasks whose rows aren't made here have the texts and the kind of filter of lm-eval's."""
    assert sorted(name for name, _ in bbh_configs) == sorted([*TASKS.groups[""]] * len(WAYS))
    for (task, theirs), config in bbh_configs.items():
        (way,) = [way for way, name in WAYS.items() if name == theirs]
        suite = suite_of(way, subsets=task)
        (split,) = suite.splits()
        row = Row(0, "row 0", {"input": "x", "target": "y"}, split.name)
        place = (split.rows.path, split.rows.config, split.rows.split)
        assert place == ("SaylorTwift/bbh", task, "test")
        assert suite.description_text(row) == config["description"]
        assert suite.question_text(row) == config["doc_to_text"].replace("{{input}}", "x")
        if samples := config.get("fewshot_config", {}).get("samples"):
            assert [dict(shot.columns) for shot in split.fewshot] == samples
        finders = [
            step
            for pipeline in config.get("filter_list", ())
            if pipeline["name"] == "flexible-extract"
            for step in pipeline["filter"]
            if step["function"] != "take_first"
        ]
        for step in finders:
            finder = find_flexible(suite, row)
            assert FINDERS[type(finder)] == step["function"].rpartition(".")[2]
            if isinstance(finder, Regex):
                assert finder.pattern == step["regex_pattern"]
            if isinstance(finder, PhraseFinder):
                assert finder.patterns == step["regex_pattern_to_value"]
            if not isinstance(finder, WordOrder):
                is_last = finder.match == "last" if isinstance(finder, Regex) else finder.last
                assert is_last == (step["group_select"] == -1)


FINDERS: Mapping[type, str] = {
    Regex: "regex",
    PhraseFinder: "MapRegexFilter",
    NumberFinder: "NumberParseRegexFilter",
    ChoiceFinder: "MultiChoiceRegexFilter",
    WordOrder: "WordSortFilter",
}


def find_flexible(suite: Any, row: Row) -> Any:
    (grading,) = [one for name, one in suite.find_gradings(row).items() if "flexible" in name]
    return grading.filters[0]
