"""The backend `local` on the real libraries, and the worked example with its training loop."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.wide

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
attaching: Any = pytest.importorskip(
    "evalution_transformers", reason="evalution-transformers is not installed"
)

import evalution  # noqa: E402 - after the skips
from evalution.runs.reader import read_run  # noqa: E402
from evalution.yaml_spec.run_spec import load_spec  # noqa: E402
from evalution_core import (  # noqa: E402
    ConfigurationError,
    EngineUnavailableError,
    LoglikelihoodRequest,
    Model,
)
from evalution_training import PeriodicEvaluation, TrainingModel, prepare_model  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "fine_tune.py"
PAIR = LoglikelihoodRequest("Question: What is 8 - 5?\nAnswer:", " 8 - 5 = 3")
CPU = {"device": "cpu", "dtype": "float32"}


def test_prepared_model_is_trained_and_evaluated(tmp_path: Path) -> None:
    with attaching.Transformers(device="cpu").build(Model("builtin:tiny")) as session:
        (expected,) = session.loglikelihood([PAIR])
    with prepare_model("local", model="builtin:tiny", run_dir=tmp_path, params=CPU) as handles:
        assert handles["model"].training
        assert (handles["device"], handles["model_name"]) == ("cpu", "builtin:tiny")
        with attaching.Transformers().attach(handles) as session:
            (found,) = session.loglikelihood([PAIR])
    assert found.logprob == pytest.approx(expected.logprob, abs=1e-6)
    assert not {"model", "tokenizer"} & handles.keys(), "teardown lets go of them"


def test_a_checkpoint_is_loaded_in_place_of_the_model(tmp_path: Path) -> None:
    with prepare_model("local", model="builtin:tiny", run_dir=tmp_path, params=CPU) as handles:
        with torch.no_grad():
            handles["model"].lm_head.weight.mul_(0.5)
        with attaching.Transformers().attach(handles) as session:
            (expected,) = session.loglikelihood([PAIR])
        handles["model"].save_pretrained(tmp_path / "saved")
    model = {"name": "builtin:tiny", "load_checkpoint_path": str(tmp_path / "saved")}
    with (
        prepare_model("local", model=model, run_dir=tmp_path, params=CPU) as handles,
        attaching.Transformers().attach(handles) as session,
    ):
        (found,) = session.loglikelihood([PAIR])
    assert found.logprob == pytest.approx(expected.logprob, abs=1e-6)


def test_a_dtype_is_that_of_the_weights(tmp_path: Path) -> None:
    params = {"device": "cpu", "dtype": "bfloat16"}
    with prepare_model("local", model="builtin:tiny", run_dir=tmp_path, params=params) as handles:
        assert handles["model"].dtype == torch.bfloat16


def test_unloadable_model_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"backend 'local' can't load .*empty"),
        prepare_model("local", model=str(tmp_path / "empty"), run_dir=tmp_path, params=CPU),
    ):
        raise AssertionError("there are no handles")


@pytest.mark.parametrize(
    ("params", "field", "trusts"),
    [
        ({}, {}, False),
        ({"trust_remote_code": True}, {}, True),
        ({}, {"trust_remote_code": True}, True),
    ],
)
def test_code_of_a_checkpoint_is_allowed_by_backend_or_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    params: dict[str, bool],
    field: dict[str, bool],
    trusts: bool,
) -> None:
    import transformers

    asked: list[bool] = []

    def load(name: str, **options: Any) -> Any:
        asked.append(options["trust_remote_code"])
        raise OSError("no weights")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    model = {"name": "org/custom", **field}
    with (
        pytest.raises(ConfigurationError, match="can't load org/custom: no weights"),
        prepare_model("local", model=model, run_dir=tmp_path, params={**CPU, **params}),
    ):
        raise AssertionError("there are no handles")
    assert asked == [trusts]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_missing_device_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineUnavailableError, match=r"asked for device 'cuda', .*there is: cpu"),
        prepare_model("local", model="builtin:tiny", run_dir=tmp_path, params={"device": "cuda"}),
    ):
        raise AssertionError("there are no handles")


def test_handles_of_another_kind_are_refused_and_torn_down(tmp_path: Path) -> None:
    suite = evalution.Perplexity(data="builtin:tiny/prose", text="text", max_rows=1)
    with pytest.raises(ConfigurationError, match="attach needs a mapping with model and tokenizer"):
        evalution.run(
            engine=attaching.Transformers(),
            backend=TrainingModel("mock", "builtin:tiny"),
            tests=[suite],
        )


def test_a_spec_with_the_backend_scores_as_one_without(tmp_path: Path) -> None:
    test = "tests: [{type: perplexity, data: 'builtin:tiny/prose', text: text, max_rows: 5}]"
    values: list[float | None] = []
    for backend in ("backend: {kind: local, params: {dtype: float32, device: cpu}}", ""):
        file = tmp_path / "spec.yaml"
        engine = "Transformers" if backend else "{type: Transformers, device: cpu}"
        file.write_text(f"engine: {engine}\nmodel: builtin:tiny\n{backend}\n{test}\n")
        loaded = load_spec(str(file))
        result = evalution.run(
            engine=loaded.engine, model=loaded.model, backend=loaded.backend, tests=loaded.tests
        )
        values.append(result.suites[0].metrics["word_perplexity"].value)
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_evaluation_runs_at_multiples_of_every(tmp_path: Path) -> None:
    with prepare_model("local", model="builtin:tiny", run_dir=tmp_path, params=CPU) as handles:
        evaluation = PeriodicEvaluation(
            attaching.Transformers(),
            handles,
            every=10,
            evaluate=lambda session, step: session.loglikelihood([PAIR])[0].logprob,
        )
        assert evaluation.after(0) is not None
        assert evaluation.after(7) is None
        with torch.no_grad():
            handles["model"].lm_head.weight.mul_(0.5)
        assert evaluation.after(10) is not None
    assert list(evaluation.results) == [0, 10]
    assert evaluation.results[0] != evaluation.results[10]


def test_every_must_be_a_positive_int() -> None:
    with pytest.raises(ConfigurationError, match="every must be an int of at least 1, got 0"):
        PeriodicEvaluation(attaching.Transformers(), {}, every=0, evaluate=lambda s, n: None)


@pytest.mark.slow
def test_example_learns_and_evaluation_does_not_affect_training(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="evalution-runner[report] is not installed")
    found = importlib.util.spec_from_file_location("fine_tune", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    losses = example.main(tmp_path / "with", steps=150, every=75)
    assert losses == example.main(tmp_path / "without", steps=150, every=0), "bit for bit"
    runs = [read_run(tmp_path / "with" / f"step-{step:04}") for step in (0, 75, 150)]
    assert [run.step for run in runs] == [0, 75, 150]
    scores = [run["numbers backwards"].metrics["exact_match"].value or 0.0 for run in runs]
    assert scores[0] < 0.05
    assert scores[-1] > 0.5
    page = (tmp_path / "with" / "report.html").read_text(encoding="utf-8")
    found = json.loads(page.partition('id="documents">')[2].partition("</script>")[0])
    assert [one["step"] for one in found["details"].values()] == [0, 75, 150]
    shown = [one["scores"][0]["value"] for one in found["runs"]["runs"]]
    assert shown == pytest.approx(scores)
