"""lm-eval's tasks as suites of the runner: its scores, our samples and journal."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.comparison import compare
from evalution.suites import load_suite
from evalution.user_input import allow_code
from evalution.yaml_spec.run_spec import load_spec
from evalution_core import (
    BaseInferenceSession,
    Capability,
    InvalidRequestError,
    Model,
    RequestFailure,
)
from evalution_lm_eval import EvalutionLM, LmEval
from evalution_reference import Reference

ALL = ("tiny_choices", "tiny_sums", "tiny_prose", "tiny_last_word", "tiny_classes", "tiny_group")
DRAWS = 200
Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def session() -> Iterator[BaseInferenceSession]:
    with Reference(dtype="float64").build(Model("builtin:tiny")) as session:
        yield session


def declare(folder: Path, *tasks: str, **options: Any) -> LmEval:
    return LmEval(
        tasks=tasks,
        include_path=str(folder),
        include_defaults=False,
        bootstrap_iters=DRAWS,
        **options,
    )


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
    """Another session that fails some requests."""

    def __init__(self, inner: BaseInferenceSession, fails: Callable[[Any], bool]):
        self.inner = inner
        self.fails = fails

    def _some(self, stream: Any, requests: Any, **options: Any) -> Iterator[Any]:
        failed: list[tuple[Any, Any]] = []

        def passed() -> Iterator[Any]:
            for key, request in requests:
                if self.fails(request):
                    failed.append((key, RequestFailure(InvalidRequestError("poisoned"))))
                else:
                    yield key, request

        yield from stream(passed(), **options)
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
