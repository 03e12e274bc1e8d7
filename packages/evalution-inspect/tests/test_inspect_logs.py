"""A run's folder as Inspect's logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample_summaries
from typer.testing import CliRunner

from evalution.cli.program import app
from evalution.runs.reader import read_run
from evalution_core import ConfigurationError
from evalution_inspect.logs import write_logs

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore"),  # it is another project's code that warns
]

SPEC = """
engine: {type: Reference, dtype: float64}
model: {path: builtin:tiny, label: tiny}
tests:
  - type: generation
    name: sums
    data: builtin:tiny/sums
    prompt: "Question: {question}\\nAnswer:"
    target: answer
    stop: ["\\n\\n"]
    max_new_tokens: 48
  - type: generation
    name: chat/sums
    data: builtin:tiny/sums
    prompt: "{question}"
    target: answer
    max_new_tokens: 48
    apply_chat_template: true
  - type: multiple_choice
    data: builtin:tiny/choices
    prompt: "Question: {question}\\nAnswer:"
    choices: choices
    target: answer
  - {type: perplexity, data: builtin:tiny/prose, text: text}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    spec = folder / "spec.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    arguments = ["run", str(spec), "--limit", "12", "--output", str(folder / "out")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    return folder / "out"


def read(path: Path) -> Any:
    return read_eval_log(str(path))


def read_logs(folder: Path, target: Path, **options: Any) -> dict[str, Any]:
    paths = write_logs(read_run(folder), target, **options)
    logs = [read(path) for path in paths]
    return {log.eval.task: log for log in logs}


def test_every_suite_has_a_log_with_its_scores_and_samples(folder: Path, tmp_path: Path) -> None:
    run = read_run(folder)
    logs = read_logs(folder, tmp_path)
    assert list(logs) == ["sums", "chat/sums", "choices", "prose"]
    for suite in run.suites:
        log = logs[suite.name]
        assert log.status == "success"
        assert log.eval.model == "evalution/builtin:tiny"
        assert log.results.total_samples == log.results.completed_samples == 12
        found = {score.name: score.metrics for score in log.results.scores}
        assert found.keys() == suite.metrics.keys()
        for name, metric in suite.metrics.items():
            assert found[name][name].value == metric.value
            assert found[name]["stderr"].value == metric.stderr
        for theirs, ours in zip(log.samples, suite.samples, strict=True):
            assert theirs.id == ours.index
            assert theirs.target == (ours.target or "")
            assert {name: score.value for name, score in theirs.scores.items()} == ours.metrics
            assert theirs.metadata["tokens"] == ours.tokens
            assert theirs.metadata["extracted"] == ours.extracted
            assert theirs.output.completion == (ours.prediction or "")


def test_log_holds_the_settings_and_environment_of_its_run(folder: Path, tmp_path: Path) -> None:
    run = read_run(folder)
    log = read_logs(folder, tmp_path)["sums"]
    assert log.eval.created == run.started
    assert log.eval.model_args == {"engine": "Reference", "options": run.engine["options"]}
    assert log.eval.config.limit == 12
    assert log.eval.task_args["prompt"] == "Question: {question}\nAnswer:"
    assert (log.eval.dataset.location, log.eval.dataset.samples) == ("builtin:tiny/sums", 12)
    config = log.eval.model_generate_config
    assert (config.max_tokens, config.stop_seqs, config.temperature) == (48, ["\n\n"], 0.0)
    assert log.eval.packages["evalution-runner"] == run.versions["evalution-runner"]
    assert log.eval.metadata["engine"]["execution"] == run.engine["execution"]
    usage = log.stats.model_usage["evalution/builtin:tiny"]
    tokens = [sample.tokens for sample in run["sums"].samples]
    assert usage.input_tokens == sum(counted["prompt"] for counted in tokens)
    assert usage.output_tokens == sum(counted["completion"] for counted in tokens)


def test_log_of_sampled_answers_has_their_settings(folder: Path, tmp_path: Path) -> None:
    run = read_run(folder)
    sampling = {"temperature": 0.8, "top_p": 0.9}
    for count, settings in ((1, (0.0, None)), (4, (0.8, 0.9))):
        run["sums"].options |= {"num_samples": count, **sampling}
        (path,) = write_logs(run, tmp_path, ["sums"])
        log = read(path)
        for config in (log.eval.model_generate_config, log.plan.config):
            assert (config.temperature, config.top_p) == settings


def test_solver_is_named_by_the_answers(folder: Path, tmp_path: Path) -> None:
    run = read_run(folder)
    for suite in run.suites:
        suite.options = {}
    logs = {log.eval.task: log for log in map(read, write_logs(run, tmp_path))}
    solvers = {name: [step.solver for step in log.plan.steps] for name, log in logs.items()}
    assert solvers == {
        "sums": ["generate"],
        "chat/sums": ["generate"],
        "choices": ["loglikelihood"],
        "prose": ["loglikelihood"],
    }
    suite = run["prose"]
    suite.kept_samples, suite.samples_file, suite.n = [], None, 0
    (path,) = write_logs(run, tmp_path, ["prose"])
    assert read(path).plan.steps == []


def test_messages_keep_their_roles(folder: Path, tmp_path: Path) -> None:
    (sample, *_) = read_logs(folder, tmp_path)["chat/sums"].samples
    assert [message.role for message in sample.input] == ["user"]
    assert [message.role for message in sample.messages] == ["user", "assistant"]
    assert sample.messages[1].text == sample.output.completion


def test_scored_text_is_the_input_of_its_sample(folder: Path, tmp_path: Path) -> None:
    (sample, *_) = read_logs(folder, tmp_path)["prose"].samples
    assert sample.input == sample.target != ""
    assert sample.output.choices == []


def test_writing_again_replaces_the_logs(folder: Path, tmp_path: Path) -> None:
    first = write_logs(read_run(folder), tmp_path)
    assert write_logs(read_run(folder), tmp_path) == first
    listed = list_eval_logs(str(tmp_path))
    assert sorted(log.task for log in listed) == ["chat-sums", "choices", "prose", "sums"]
    for path in first:
        assert len(read_eval_log_sample_summaries(str(path))) == 12


def test_failed_sample_has_its_error(folder: Path, tmp_path: Path) -> None:
    run = read_run(folder)
    suite = run["sums"]
    broken = suite.samples[3]
    broken.error, broken.prediction = "EngineRuntimeError: it died", None
    suite.kept_samples, suite.samples_file = [broken], None
    suite.n, suite.failed = 1, 1
    (path,) = write_logs(run, tmp_path, ["sums"])
    log = read(path)
    assert (log.results.total_samples, log.results.completed_samples) == (1, 0)
    assert log.samples[0].error.message == "EngineRuntimeError: it died"


def test_missing_values_are_left_out_and_infinity_stays(folder: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    run = read_run(folder)
    suite = run["prose"]
    metrics = dict(suite.metrics)
    metrics["word_perplexity"] = replace(metrics["word_perplexity"], value=float("inf"))
    metrics["byte_perplexity"] = replace(metrics["byte_perplexity"], value=None, stderr=None)
    suite.metrics = metrics
    (path,) = write_logs(run, tmp_path, ["prose"])
    found = {score.name: score.metrics for score in read(path).results.scores}
    assert found["word_perplexity"]["word_perplexity"].value == float("inf")
    assert found["byte_perplexity"] == {}


@pytest.mark.parametrize(
    ("status", "expected"), [("failed", "error"), ("interrupted", "cancelled")]
)
def test_suite_in_which_a_run_ended_has_a_log_with_the_error(
    folder: Path, tmp_path: Path, status: Any, expected: str
) -> None:
    run = read_run(folder)
    run.status = status
    run.error = {"suite": "prose", "type": "EngineRuntimeError", "message": "the runtime died"}
    run.suites = run.suites[:-1]
    logs = {log.eval.task: log for log in map(read, write_logs(run, tmp_path))}
    assert logs["sums"].status == "success"
    assert logs["prose"].status == expected
    assert logs["prose"].error.message == "EngineRuntimeError: the runtime died"
    assert len(logs["prose"].samples) == 12


def test_unknown_suite_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no suite 'sum'; did you mean 'sums'\?"):
        write_logs(read_run(folder), tmp_path, ["sum"])


def test_run_without_a_suite_is_refused(folder: Path, tmp_path: Path) -> None:
    run = read_run(folder)
    run.suites = []
    with pytest.raises(ConfigurationError, match="no suite of the run was begun"):
        write_logs(run, tmp_path)


def test_unwritable_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="file can't be written"):
        write_logs(read_run(folder), taken)


def test_command_writes_beside_the_run(folder: Path) -> None:
    done = CliRunner().invoke(app, ["inspect-log", str(folder), "--suite", "choices"])
    assert done.exit_code == 0, done.output
    path, advice = done.stdout.splitlines()
    assert Path(path).parent == folder / "inspect"
    assert read(Path(path)).eval.task == "choices"
    assert advice == f"look at them: inspect view --log-dir {folder / 'inspect'}"


def test_command_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["inspect-log", str(tmp_path)])
    assert done.exit_code == 2
    assert "so it is no folder of a run" in done.output
    assert "Traceback" not in done.output
