"""Options of the reference engine, and the models that it builds or refuses."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from evalution import Run
from evalution.suites import Generation
from evalution_core import (
    ConfigurationError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    load_engine,
)
from evalution_core.builtins import builtin_path
from evalution_reference import Reference


def test_it_is_found_by_name_whatever_the_case() -> None:
    assert load_engine("reference") is Reference


def test_it_pickles_with_its_options() -> None:
    engine = Reference(dtype="float64", max_model_len=64)
    assert pickle.loads(pickle.dumps(engine)) == engine


@pytest.mark.parametrize(("name", "least"), [("batch_size", 1), ("max_model_len", 2)])
def test_options_have_a_least_value_and_a_description(name: str, least: int) -> None:
    options: dict[str, Any] = {name: least}
    assert getattr(Reference(**options), name) == least
    refused = f"option {name!r} of engine Reference must be at least {least}.*got {least - 1}"
    options[name] -= 1
    with pytest.raises(ConfigurationError, match=refused):
        Reference(**options)
    described = Reference.options_schema()["properties"]
    assert all(option["description"] for option in described.values())


def test_a_misspelt_option_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="no option 'dtyp'; did you mean 'dtype'"):
        Reference(dtyp="float64")  # pyright: ignore[reportCallIssue]


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'float32' or 'float64', got 'bfloat16'"):
        Reference(dtype="bfloat16")  # pyright: ignore[reportArgumentType]


def test_a_missing_folder_says_what_the_engine_loads(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere' does not exist; .*builtin:tiny"):
        Reference().build(Model(str(tmp_path / "nowhere")))
    with pytest.raises(ConfigurationError, match=r"tiny; for a name on the Hub take engine Transf"):
        Reference().build(Model("meta-llama/Llama-3-8B"))


def test_a_model_is_needed() -> None:
    with pytest.raises(ConfigurationError, match=r"needs model\.path"):
        Reference().build(Model())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Model("builtin:tiny", model_kwargs={"dtype": "float32"}),
            "no model.model_kwargs: nothing",
        ),
        (Model("owner/name", revision="main"), "takes no model.revision: it loads a local folder"),
    ],
)
def test_a_field_of_the_model_that_does_nothing_is_refused(model: Model, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Reference().build(model)


def test_an_unknown_builtin_lists_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"no builtin 'huge' is installed \(inst.*tiny\)"):
        Reference().build(Model("builtin:huge"))


def test_a_window_beyond_the_models_own_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_model_len=513 must be between 2 and"):
        Reference(max_model_len=513).build(Model("builtin:tiny"))


def test_a_checkpoint_without_a_tokenizer_says_where_to_put_one(
    write_checkpoint: Callable[..., Path],
) -> None:
    with pytest.raises(ConfigurationError, match=r"no tokenizer in .*set tokenizer_path"):
        Reference().build(Model(str(write_checkpoint())))


def test_another_family_is_named(write_checkpoint: Callable[..., Path]) -> None:
    folder = write_checkpoint()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(ConfigurationError, match="mamba"):
        Reference().build(Model(str(folder)))


def test_chat_is_rendered_with_the_models_variables(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    (folder / "chat_template.jinja").write_text(
        "{{ messages[0]['content'] }}{% if thinks is defined and not thinks %} quickly{% endif %}"
    )
    asked = GenerationRequest(messages=[{"role": "user", "content": "say"}], max_new_tokens=1)
    scored = LoglikelihoodRequest(messages=asked.messages, continuation=" it")
    seen: dict[str, float] = {}
    for variables, prompt in (({}, "say"), ({"thinks": False}, "say quickly")):
        with Reference().build(Model(str(folder), chat_template_kwargs=variables)) as session:
            assert session.generate([asked])[0].prompt == prompt
            seen[prompt] = session.loglikelihood([scored])[0].logprob
            (expected,) = session.loglikelihood([LoglikelihoodRequest(prompt, " it")])
            assert seen[prompt] == expected.logprob
            assert ("chat_template_kwargs" in (session.identity() or {})) is bool(variables)
    assert len(set(seen.values())) == 2


@pytest.mark.parametrize("batch_size", [None, "auto", 2])
def test_any_batch_size_runs_a_suite_through_the_engines_model(
    batch_size: int | Literal["auto"] | None,
) -> None:
    suite = Generation(
        data="builtin:tiny/sums",
        prompt="Question: {question}\nAnswer:",
        target="answer",
        max_new_tokens=48,
        max_rows=3,
    )
    with Reference(batch_size=batch_size).model(path="builtin:tiny") as run:
        assert isinstance(run, Run)
        run.run(suite)
    assert run.result["sums"].metrics["exact_match"].n == 3
