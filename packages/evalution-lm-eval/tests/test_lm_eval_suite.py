"""lm-eval's tasks as suites of the runner: its scores, our samples and journal."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.comparison import compare
from evalution.report.documents import make_documents
from evalution.results import SuiteResult
from evalution.scoring.intervals import normal_interval, wilson_interval
from evalution.suites import load_suite
from evalution.user_input import allow_code
from evalution.yaml_spec.run_spec import load_spec
from evalution_core import (
    BaseInferenceSession,
    Capability,
    InvalidRequestError,
    RequestFailure,
)
from evalution_lm_eval import EvalutionLM, LmEval

OWN_CODE = """
import numpy
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

def named(references, predictions, **options):
    return {"worth@1": 1.0}

def right(row):
    return row["answer"]

def contexts(row):
    return [f"{row['question']} {choice}:" for choice in row["choices"]]

class Own(ConfigurableTask):
    def __init__(self, config):
        super().__init__(config={k: v for k, v in config.items() if k != "class"})

    def construct_requests(self, doc, ctx, chat_template=None, apply_chat_template=False, **names):
        asked = {"until": ["7"], "max_gen_toks": 5 + len(ctx) % 3}
        return Instance("generate_until", doc, (ctx, asked), 0, **names)

    def process_results(self, doc, results):
        return {"length": len(results[0])}

    def aggregation(self):
        return {"length": numpy.mean}

    def higher_is_better(self):
        return {"length": True}
"""
"""Code of tasks: a class with requests of its own, and functions."""
ALL = ("tiny_choices", "tiny_sums", "tiny_prose", "tiny_last_word", "tiny_classes", "tiny_group")
DRAWS = 200
Evaluate = Callable[..., dict[str, Any]]


def declare(folder: Path, *tasks: str, **options: Any) -> LmEval:
    return LmEval(
        tasks=tasks,
        include_path=str(folder),
        include_defaults=False,
        bootstrap_iters=DRAWS,
        **options,
    )


def write_task(folder: Path, name: str, base: Path, **changes: Any) -> str:
    """Write a task that is another one with changes, `!function` among them, and its code."""
    (folder / "code.py").write_text(OWN_CODE, encoding="utf-8")
    declared = json.loads(base.read_text(encoding="utf-8")) | changes | {"task": name}
    text = re.sub(r'"(!function [\w.]+)"', r"\1", json.dumps(declared))
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return name


def read_scores(suite: Any, part: str = "") -> dict[str, float]:
    """Scores of one task or group under lm-eval's keys, NaN for a standard error that isn't."""
    found: dict[str, float] = {}
    for name, metric in suite.metrics.items():
        words = name.split(",")
        if part and words[-1] != part:
            continue
        words = [word for word in words if word != part]
        if words[1:] and words[1].startswith("tiny_"):
            continue
        filtered = words[1] if words[1:] else "none"
        found[f"{words[0]},{filtered}"] = metric.value
        error = metric.stderr
        found[f"{words[0]}_stderr,{filtered}"] = math.nan if error is None else error
    return found


def theirs(results: dict[str, Any], name: str) -> dict[str, float]:
    found = results["results"][name]
    kept = {key: value for key, value in found.items() if "," in key}
    return {key: math.nan if value == "N/A" else float(value) for key, value in kept.items()}


def close_to(right: dict[str, float]) -> Any:
    return pytest.approx(right, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("shots", [None, 2])
def test_scores_and_standard_errors_equal_lm_eval(
    session: BaseInferenceSession, task_folder: Path, evaluate: Evaluate, shots: int | None
) -> None:
    found = evalution.run(
        session=session, tests=[declare(task_folder, *ALL, num_fewshot=shots, limit=9)]
    )
    model = EvalutionLM(session=session)
    right = evaluate(model, *ALL[:-1], num_fewshot=shots, limit=9)
    # lm-eval refuses a task that stands alone and in a group.
    grouped = evaluate(model, "tiny_group", num_fewshot=shots, limit=9)
    right["results"] |= grouped["results"]
    assert [suite.name for suite in found.suites] == list(ALL)
    for name in ALL:
        assert read_scores(found[name]) == close_to(theirs(right, name)), name
    for task in ("tiny_choices", "tiny_others"):
        of_task = read_scores(found["tiny_group"], task)
        assert of_task == close_to(theirs(right, task))
    assert found.failed == 0


def test_range_of_a_documents_score_is_known_where_the_score_is_their_mean(
    session: BaseInferenceSession, task_folder: Path
) -> None:
    names = ("tiny_group", "tiny_alike", "tiny_last_word", "tiny_classes")
    found = evalution.run(session=session, tests=[declare(task_folder, *names, limit=9)])
    sizes = evalution.run(session=session, tests=[declare(task_folder, "tiny_alike")])

    def read(suite: SuiteResult) -> dict[str, object]:
        return {name: metric.row_range for name, metric in suite.metrics.items()}

    assert read(found["tiny_group"])["acc"] == read(found["tiny_alike"])["acc"] == (0.0, 1.0)
    twice = evalution.run(session=session, tests=[declare(task_folder, "tiny_overlap", limit=9)])
    assert read(twice["tiny_overlap"])["acc"] is None  # tiny_others is in two of its groups
    assert read(sizes["tiny_alike"])["acc"] is None  # 24 documents count as much as 12
    assert read(sizes["tiny_alike"])["acc,tiny_others"] == (0.0, 1.0)
    assert read(found["tiny_last_word"]) == {"perplexity": None, "acc": (0.0, 1.0)}
    assert read(found["tiny_classes"]) == {
        "mcc": None,
        "brier_score": None,
        "exact_match": (0.0, 1.0),
    }


def test_group_of_right_or_wrong_documents_is_a_share_of_all(
    session: BaseInferenceSession, task_folder: Path
) -> None:
    tests = [declare(task_folder, "tiny_group"), declare(task_folder, "tiny_alike")]
    found = evalution.run(session=session, tests=tests)
    group, alike = (suite.metrics["acc"] for suite in found.suites)
    assert group.value is not None
    assert group.interval == wilson_interval(group.value, 36)
    assert alike.interval == normal_interval(alike.value or 0.0, alike.stderr)
    runs = make_documents([found], 0)["runs"]["runs"]
    shares = {each["suite"]: each["is_share"] for each in runs[0]["scores"] if each["main"]}
    assert shares == {"tiny_group": True, "tiny_alike": False}


def test_inner_group_has_scores_beside_the_outer_ones(
    session: BaseInferenceSession, task_folder: Path, evaluate: Evaluate
) -> None:
    suite = evalution.run(session=session, tests=[declare(task_folder, "tiny_outer")])
    right = evaluate(EvalutionLM(session=session), "tiny_outer")
    found = suite["tiny_outer"]
    assert read_scores(found) == close_to(theirs(right, "tiny_outer"))
    for part in ("tiny_group", "tiny_choices", "tiny_others", "tiny_last_word"):
        assert read_scores(found, part) == close_to(theirs(right, part)), part
    assert [next(iter(found.metrics)), found.metrics["acc"].n] == ["acc", 48]
    assert set(found.samples[-1].metrics) == {
        *("acc", "acc,tiny_last_word", "perplexity,tiny_last_word"),
    }


def test_task_that_groups_share_is_asked_once(
    session: BaseInferenceSession, task_folder: Path, evaluate: Evaluate
) -> None:
    found = evalution.run(session=session, tests=[declare(task_folder, "tiny_overlap")])
    right = evaluate(EvalutionLM(session=session), "tiny_overlap")
    suite = found["tiny_overlap"]
    assert read_scores(suite) == close_to(theirs(right, "tiny_overlap"))
    for part in ("tiny_group", "tiny_pair", "tiny_others"):
        assert read_scores(suite, part) == close_to(theirs(right, part)), part
    assert (suite.n, suite.metrics["acc"].n, suite.metrics["acc,tiny_others"].n) == (48, 48, 12)
    shared = [s.metrics for s in suite.samples if "acc,tiny_others" in s.metrics]
    assert all({"acc", "acc,tiny_group", "acc,tiny_pair"} <= set(names) for names in shared)


def test_perplexity_of_a_document_may_be_beyond_all_numbers(
    session: BaseInferenceSession, task_folder: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    word = "".join(chr(0x3042 + (number * 7) % 80) for number in range(200))
    texts = ["Tom has 3 apples and gets 4. " * 9] * 6 + [word]
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    task = json.loads((task_folder / "tiny_prose.yaml").read_text(encoding="utf-8"))
    task |= {"task": "tiny_long_word", "dataset_kwargs": {"data_files": {"test": str(rows)}}}
    file = tmp_path / "tiny_long_word.yaml"
    file.write_text(json.dumps(task), encoding="utf-8")
    (suite,) = evalution.run(session=session, tests=[declare(tmp_path, "tiny_long_word")]).suites
    right = evaluate(EvalutionLM(session=session), str(file))
    assert (suite.failed, suite.metrics["word_perplexity"].n) == (0, 7)
    assert read_scores(suite) == close_to(theirs(right, "tiny_long_word"))
    assert "word_perplexity" not in suite.samples[-1].metrics


def test_task_file_added_since_is_found(task_folder: Path, tmp_path: Path) -> None:
    for name in ("tiny_sums", "tiny_prose"):
        shutil.copy(task_folder / f"{name}.yaml", tmp_path)
        assert declare(tmp_path, name).suites()


def test_samples_show_prompt_and_filtered_answers(
    session: BaseInferenceSession, task_folder: Path, evaluate: Evaluate
) -> None:
    found = evalution.run(session=session, tests=[declare(task_folder, "tiny_sums")])
    right = evaluate(EvalutionLM(session=session), "tiny_sums")["samples"]["tiny_sums"]
    samples = found["tiny_sums"].samples
    for filtered in ("strict-match", "flexible"):
        by_row = {one["doc_id"]: one for one in right if one["filter"] == filtered}
        assert [sample.index for sample in samples] == sorted(by_row)
        for sample in samples:
            other = by_row[sample.index]
            assert (sample.prompt, sample.target) == (other["arguments"][0][0], other["target"])
            assert sample.prediction == other["resps"][0][0]
            assert sample.extracted[filtered] == other["filtered_resps"][0]
            assert sample.metrics[f"exact_match,{filtered}"] == other["exact_match"]


def test_tasks_of_one_declaration_have_their_own_kind_of_request(task_folder: Path) -> None:
    suites = declare(task_folder, "tiny_bundle", "tiny_choices", name="mine").suites()
    assert [(suite.title, suite.request_kind.value) for suite in suites] == [
        ("mine tiny_sums", "generation"),
        ("mine tiny_prose", "rolling"),
        ("mine tiny_choices", "loglikelihood"),
    ]


def test_spec_declares_tasks_by_the_type_lm_eval(task_folder: Path, tmp_path: Path) -> None:
    assert load_suite("lm_eval") is LmEval
    spec = tmp_path / "run.yaml"
    spec.write_text(
        "engine: Reference\nmodel: builtin:tiny\ntests:\n"
        f"  - {{type: lm_eval, tasks: tiny_prose, include_path: {task_folder}, "
        "include_defaults: false, limit: 0.25}\n"
    )
    with allow_code():
        loaded = load_spec(str(spec))
    found = evalution.run(engine=loaded.engine, model=loaded.model, tests=loaded.tests)
    assert found["tiny_prose"].n == 2


def test_task_with_repeats_sends_each_request_again(
    session: BaseInferenceSession, task_folder: Path
) -> None:
    found = evalution.run(session=session, tests=[declare(task_folder, "tiny_sampled")])
    assert found["tiny_sampled"].requests == 12
    (suite,) = declare(task_folder, "tiny_sampled").suites()
    assert {Capability.SAMPLING, Capability.SEED} <= suite.needs


def test_chat_is_rendered_as_in_lm_eval(
    session: BaseInferenceSession, task_folder: Path, evaluate: Evaluate
) -> None:
    options: dict[str, Any] = {"apply_chat_template": True, "num_fewshot": 1}
    test = declare(task_folder, "tiny_chat", system_instruction="Be brief.", **options)
    found = evalution.run(session=session, tests=[test])
    right = evaluate(
        EvalutionLM(session=session), "tiny_chat", system_instruction="Be brief.", **options
    )
    assert read_scores(found["tiny_chat"]) == close_to(theirs(right, "tiny_chat"))
    texts = {one["doc_id"]: one["resps"][0][0] for one in right["samples"]["tiny_chat"]}
    assert {s.index: s.prediction for s in found["tiny_chat"].samples} == texts


class Failing(BaseInferenceSession):
    """Another session that fails some requests, after the answers to the others or before."""

    def __init__(
        self, inner: BaseInferenceSession, fails: Callable[[Any], bool], *, is_early: bool = False
    ):
        self.inner = inner
        self.fails = fails
        self.is_early = is_early

    def _some(self, stream: Any, requests: Any, **options: Any) -> Iterator[Any]:
        failed: list[tuple[Any, Any]] = []

        def passed() -> Iterator[Any]:
            for key, request in requests:
                if self.fails(request):
                    failed.append((key, RequestFailure(InvalidRequestError("poisoned"))))
                else:
                    yield key, request

        others = [*passed()] if self.is_early else passed()
        if self.is_early:
            yield from failed
        yield from stream(iter(others), **options)
        if not self.is_early:
            yield from failed

    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        return self._some(self.inner.generate_continuous, requests, batch_size=batch_size)

    def loglikelihood_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        return self._some(self.inner.loglikelihood_continuous, requests, batch_size=batch_size)

    def generate(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise NotImplementedError

    def gc(self) -> None: ...
    def close(self) -> None: ...


def test_failed_sample_is_wrong_in_a_mean_and_left_out_of_a_perplexity(
    session: BaseInferenceSession, task_folder: Path
) -> None:
    whole = evalution.run(session=session, tests=[declare(task_folder, "tiny_last_word")])
    lost = {sample.index for sample in whole["tiny_last_word"].samples[:3]}
    contexts = {s.prompt for s in whole["tiny_last_word"].samples if s.index in lost}
    failing = Failing(session, lambda request: request.context in contexts)
    found = evalution.run(session=failing, tests=[declare(task_folder, "tiny_last_word")])
    suite = found["tiny_last_word"]
    assert (suite.failed, suite.n) == (3, 12)
    right = sum(s.metrics["acc"] for s in whole["tiny_last_word"].samples if s.index not in lost)
    assert (suite.metrics["acc"].value, suite.metrics["acc"].n) == (pytest.approx(right / 12), 12)
    assert suite.metrics["perplexity"].n == 9
    assert [*suite.metrics] == [*whole["tiny_last_word"].metrics]


def test_scores_that_are_no_means_are_compared_by_row(
    session: BaseInferenceSession, task_folder: Path
) -> None:
    found = evalution.run(
        session=session, tests=[declare(task_folder, "tiny_classes", "tiny_prose")]
    )
    assert {sample.metrics["mcc"] for sample in found["tiny_classes"].samples} == {0.0, 1.0}
    for sample in found["tiny_classes"].samples:
        assert sample.metrics["mcc"] == float(sample.prediction == sample.target)
    compared = compare(found, found)
    for suite, names in (
        ("tiny_classes", ["mcc"]),
        ("tiny_prose", ["word_perplexity", "byte_perplexity", "bits_per_byte"]),
    ):
        tests = {metric.name: metric.test for metric in compared[suite].metrics}
        for name in names:
            test = tests[name]
            assert test is not None
            assert (test.name, test.pairs) == ("sign", found[suite].n)


def test_run_without_an_answer_has_scores(session: BaseInferenceSession, task_folder: Path) -> None:
    failing = Failing(session, lambda request: True)
    found = evalution.run(session=failing, tests=[declare(task_folder, "tiny_group")])
    suite = found["tiny_group"]
    assert suite.failed == suite.n == 36
    assert (suite.metrics["acc"].value, suite.metrics["acc"].n) == (0.0, 36)


def test_settings_of_a_request_count_over_those_of_its_task(
    session: BaseInferenceSession, task_folder: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    sums = task_folder / "tiny_sums.yaml"
    name = write_task(tmp_path, "tiny_own", sums, **{"class": "!function code.Own"})
    given = {"max_gen_toks": 3}
    (suite,) = declare(tmp_path, name, gen_kwargs=given).suites()
    asked = [request for sample in suite.samples() for request in sample.requests]
    assert {request.max_new_tokens for request in asked} == {5, 6, 7}
    assert {tuple(request.stop) for request in asked} == {("7",)}
    found = evalution.run(session=session, tests=[declare(tmp_path, name, gen_kwargs=given)])
    file = str(tmp_path / f"{name}.yaml")
    right = evaluate(EvalutionLM(session=session), file, gen_kwargs=given)
    assert read_scores(found[name]) == close_to(theirs(right, name))


def test_failed_sample_is_wrong_in_the_mean_of_another_library(
    session: BaseInferenceSession, task_folder: Path, tmp_path: Path
) -> None:
    sums = task_folder / "tiny_sums.yaml"
    own: dict[str, Any] = {"class": "!function code.Own", "filter_list": None}
    name = write_task(tmp_path, "tiny_own", sums, **own)
    whole = evalution.run(session=session, tests=[declare(tmp_path, name)])[name]
    lost = whole.samples[0]
    failing = Failing(session, lambda request: request.prompt == lost.prompt)
    suite = evalution.run(session=failing, tests=[declare(tmp_path, name)])[name]
    total = sum(sample.metrics["length"] for sample in whole.samples[1:])
    assert (suite.failed, suite.metrics["length"].n) == (1, 12)
    assert suite.metrics["length"].value == pytest.approx(total / 12)
    assert suite.samples[0].metrics == {"length": 0.0}


def test_failed_sample_counts_in_the_metrics_that_answers_have(
    session: BaseInferenceSession, task_folder: Path, tmp_path: Path
) -> None:
    metric = {"metric": "!function code.named", "aggregation": "mean", "higher_is_better": True}
    sums = task_folder / "tiny_sums.yaml"
    plain: dict[str, Any] = {"metric_list": [metric], "filter_list": None}
    name = write_task(tmp_path, "tiny_named", sums, **plain)
    (suite,) = declare(tmp_path, name).suites()
    prompts = [sample.requests[0].prompt for sample in suite.samples()]
    for lost, is_early in ((prompts[:1], False), (prompts[-1:], False), (prompts[:1], True)):
        failing = Failing(
            session, lambda request, lost=lost: request.prompt in lost, is_early=is_early
        )
        found = evalution.run(session=failing, tests=[declare(tmp_path, name)])[name]
        assert {name: (metric.value, metric.n) for name, metric in found.metrics.items()} == {
            "worth@1": (pytest.approx(11 / 12), 12)
        }
        assert found.samples[prompts.index(*lost)].metrics == {"named": 0.0}  # as declared


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {
                "doc_to_text": "!function code.right",
                "doc_to_choice": "!function code.contexts",
                "doc_to_target": "{{choices[answer]}}",
                "metric_list": [{"metric": "acc"}],
            },
            "{question} {choice}:",
        ),
        ({"metric_list": [{"metric": "acc"}, {"metric": "acc_mutual_info"}]}, "{choice}"),
    ],
    ids=["choices-in-contexts", "mutual-information"],
)
def test_prediction_and_target_are_choices_of_the_task(
    session: BaseInferenceSession,
    task_folder: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    text: str,
) -> None:
    name = write_task(tmp_path, "tiny_shown", task_folder / "tiny_classes.yaml", **changes)
    suite = evalution.run(session=session, tests=[declare(tmp_path, name)])[name]
    rows = (task_folder / "tiny_classes.jsonl").read_text(encoding="utf-8").splitlines()
    for sample, row in zip(suite.samples, map(json.loads, rows), strict=True):
        choices = [text.format(choice=choice, **row) for choice in row["choices"]]
        assert sample.target == choices[row["answer"]]
        assert sample.prediction in choices
        assert (sample.prediction == sample.target) == sample.metrics["acc"]
    assert {sample.metrics["acc"] for sample in suite.samples} == {0.0, 1.0}
