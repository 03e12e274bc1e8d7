"""A rollout server held against the model in training: each fault is found and named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.wide

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
attaching: Any = pytest.importorskip(
    "evalution_transformers", reason="evalution-transformers is not installed"
)

import evalution  # noqa: E402 - after the skips
from evalution.runs.preflight import EngineAndModel  # noqa: E402
from evalution_core import (  # noqa: E402
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    GenerationOutput,
    GenerationRequest,
    Model,
)
from evalution_core.builtins import builtin_path  # noqa: E402
from evalution_enginekit import TokenSpan  # noqa: E402
from evalution_enginekit.distributions import Rows, log_softmax_rows  # noqa: E402
from evalution_reference import Reference  # noqa: E402
from evalution_training.rollout import RolloutCheck, RolloutResult  # noqa: E402
from evalution_training.training_side import cast_weights  # noqa: E402
from evalution_transformers.session import TransformersSession  # noqa: E402

PROSE = [evalution.Perplexity(data="builtin:tiny/prose", text="text", max_rows=8)]
README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(builtin_path("builtin:tiny", "safetensors"))


@pytest.fixture
def model() -> Any:
    folder = builtin_path("builtin:tiny", "safetensors")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()


def update(model: Any, seed: int, size: float = 1e-3) -> None:
    """Move the weights as a step of training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            weights += size * torch.randn(weights.shape, generator=generator)


@pytest.fixture
def serve(tokenizer: Any) -> Callable[[Any], BaseInferenceSession]:
    """A function that serves a copy of a model."""
    return lambda model: attaching.Transformers().attach(
        {"model": deepcopy(model), "tokenizer": tokenizer}
    )


Serve = Callable[[Any], BaseInferenceSession]


def check(model: Any, tokenizer: Any, rollout: Any, **options: Any) -> RolloutResult:
    handles = {"model": model, "tokenizer": tokenizer}
    found = RolloutCheck(attaching.Transformers(), handles, rollout, PROSE, **options).check(1)
    assert found.fidelity.overall.candidate.divergence.positions <= 4096
    return found


class _Tops(TransformersSession):
    """A server that gives the likeliest tokens alone."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities - {Capability.DISTRIBUTIONS}


class _Cut(TransformersSession):
    """A server that cuts distributions whose likeliest token is sure to 500 tokens."""

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        for rows in super()._compute_rows(spans):
            least = np.sort(rows, axis=1)[:, -500:-499]
            is_kept = (rows >= least) | (rows.max(axis=1, keepdims=True) < -0.1)
            yield log_softmax_rows(np.where(is_kept, rows, np.float32(-np.inf)))


class _Cold(TransformersSession):
    """A server that samples at a temperature of 0.8, whatever is asked for."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        changed = [replace(request, temperature=0.8) for request in requests]
        return super().generate(changed, batch_size=batch_size)


@pytest.mark.parametrize("seed", range(20))
def test_clean_pair_on_two_engines_is_in_sync(
    seed: int, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    update(model, seed)
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path)
    rollout = EngineAndModel(Reference(dtype="float32"), Model(str(tmp_path)))
    found = check(model, tokenizer, rollout, samples=512)
    assert (found.verdict, found.causes) == ("in sync", [])
    assert found.fidelity.candidate.engine["name"] == "Reference"
    assert found.samples is not None
    assert found.samples.tokens == 512
    assert abs(found.samples.temperature - 1) < 0.3
    assert found.samples.k1 == pytest.approx(0, abs=1e-6)
    assert found.samples.k3 == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.7, 1.1])
def test_wrong_temperature_of_distributions_is_named(
    temperature: float, model: Any, tokenizer: Any, serve: Serve
) -> None:
    scaled = deepcopy(model)
    scaled.lm_head.weight = torch.nn.Parameter(scaled.lm_head.weight / temperature)
    found = check(model, tokenizer, serve(scaled))
    assert found.verdict == "temperature"
    assert found.detail == f"its distributions are at temperature {temperature:.3g}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_wrong_dtype_is_named(
    dtype: str, model: Any, tokenizer: Any, serve: Serve, tmp_path: Path
) -> None:
    found = check(model, tokenizer, serve(model.to(getattr(torch, dtype)).float()))
    assert found.verdict == "in sync"
    model.save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    served = load(tmp_path, dtype=getattr(torch, dtype))
    found = check(model, tokenizer, serve(served))
    assert (found.verdict, found.detail) == ("dtype", f"it computes in {dtype}")
    tensors = (
        {**dict(each.named_parameters()), **dict(each.named_buffers())}
        for each in (served, cast_weights(deepcopy(model), getattr(torch, dtype)))
    )
    for one, other in zip(*(each.items() for each in tensors), strict=True):
        assert one[0] == other[0]
        torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_wrong_dtype_on_other_kernels_shows_in_the_logits(
    dtype: str, model: Any, tokenizer: Any, serve: Serve
) -> None:
    served = deepcopy(model).to(getattr(torch, dtype))
    served.set_attn_implementation("eager")
    found = check(model, tokenizer, serve(served))
    assert found.verdict == "dtype"
    assert found.detail.startswith(f"its logits are rounded to {dtype}, and the distance is of the")
    assert found.causes[0].residual is None


def test_model_in_bfloat16_is_in_sync_with_its_own_dtype_only(
    model: Any, tokenizer: Any, serve: Serve
) -> None:
    half = deepcopy(model).to(torch.bfloat16)
    other = deepcopy(half)
    other.set_attn_implementation("eager")
    found = check(half, tokenizer, serve(other))
    assert found.verdict == "in sync"
    assert found.fidelity.overall.candidate.divergence.kl.value > 1e-6
    update(model, 0, 2e-2)
    assert check(half, tokenizer, serve(model)).verdict == "unexplained"


def test_stale_weights_amid_a_series_are_named_with_their_step(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    served = deepcopy(model)
    rollout = attaching.Transformers().attach({"model": served, "tokenizer": tokenizer})
    handles = {"model": model, "tokenizer": tokenizer}
    lines = tmp_path / "rollout.jsonl"
    series = RolloutCheck(attaching.Transformers(), handles, rollout, PROSE, lines)
    verdicts: dict[int, str] = {}
    details: dict[int, str] = {}
    for step in range(6):
        if step:
            update(model, step)
        if step not in (3, 4):
            served.load_state_dict(model.state_dict())
        found = series.check(step)
        verdicts[step], details[step] = found.verdict, found.detail
    wrong = {3: "stale weights", 4: "stale weights"}
    assert verdicts == {step: wrong.get(step, "in sync") for step in range(6)}
    assert details[3] == details[4] == "it runs the weights of step 2"
    written = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in written] == list(range(6))
    assert [line["verdict"] for line in written] == list(verdicts.values())
    kl = written[3]["kl"]
    assert 0 < kl["low"] < kl["value"] < kl["high"]
    assert written[3]["causes"][0]["residual"] < kl["value"] / 10


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's use of it
def test_missing_adapter_is_named(model: Any, tokenizer: Any, serve: Serve) -> None:
    peft: Any = pytest.importorskip("peft", reason="peft is not installed")
    base = deepcopy(model)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    assert check(adapted, tokenizer, serve(adapted)).verdict == "in sync"
    found = check(adapted, tokenizer, serve(base))
    assert found.verdict == "missing adapter"
    assert found.detail == "it runs the model without its adapters"
    assert adapted.active_adapters == ["default"]


def test_other_weights_are_unexplained(model: Any, tokenizer: Any, serve: Serve) -> None:
    other = deepcopy(model)
    update(other, 0, 3e-2)
    found = check(model, tokenizer, serve(other))
    assert (found.verdict, found.causes) == ("unexplained", [])
    assert found.detail == "no known cause explains it"


def test_server_that_excludes_tokens_is_not_in_sync(
    model: Any, tokenizer: Any, serve: Serve, tmp_path: Path
) -> None:
    session = serve(model)
    session.__class__ = _Cut
    found = check(model, tokenizer, session, output=tmp_path / "lines.jsonl")
    assert found.verdict == "unexplained"
    assert found.detail == "the server excludes tokens, as top_p and top_k do"
    (line,) = (tmp_path / "lines.jsonl").read_text(encoding="utf-8").splitlines()
    written = json.loads(line)
    assert 0 < written["infinite"] < written["positions"]
    assert written["kl"]["value"] < written["tolerance"], "of the other positions"


def test_distance_of_the_size_of_rounding_is_unexplained_with_its_size(
    model: Any, tokenizer: Any, serve: Serve
) -> None:
    other = deepcopy(model)
    update(other, 0, 3e-4)
    found = check(model, tokenizer, serve(other))
    assert found.verdict == "unexplained"
    assert found.detail.startswith("of the size that rounding to ")


def test_server_of_likeliest_tokens_gives_a_lower_bound_and_its_cause(
    model: Any, tokenizer: Any, serve: Serve
) -> None:
    with torch.no_grad():
        served = deepcopy(model)
        served.lm_head.weight *= 2
    session = serve(served)
    session.__class__ = _Tops
    found = check(model, tokenizer, session)
    assert found.fidelity.overall.candidate.divergence.is_lower_bound
    assert (found.verdict, found.to_dict()["is_lower_bound"]) == ("temperature", True)
    assert found.detail == "its distributions are at temperature 0.5"


def test_agreement_of_likeliest_tokens_says_how_much_was_compared(
    model: Any, tokenizer: Any, serve: Serve
) -> None:
    session = serve(model)
    session.__class__ = _Tops
    found = check(model, tokenizer, session)
    assert found.verdict == "in sync"
    assert re.search(r", a lower bound: \d+\.\d% of the probability was compared$", found.detail)
    assert found.to_dict()["failed"] == 0


def test_wrong_temperature_of_samples_is_named(model: Any, tokenizer: Any, serve: Serve) -> None:
    session = serve(model)
    session.__class__ = _Cold
    found = check(model, tokenizer, session, samples=1024)
    assert found.samples is not None
    assert found.samples.temperature == pytest.approx(0.8, abs=0.1)
    assert found.verdict == "temperature"
    assert found.detail.startswith("tokens are sampled at temperature 0.")
    assert found.detail.endswith(" where 1 was asked for")


def test_tolerance_is_asked_for_where_the_weights_are_elsewhere(
    model: Any, tokenizer: Any, serve: Serve
) -> None:
    class Elsewhere(attaching.Transformers):
        """An engine that attaches to a client of a training server."""

        def attach(self, handles: Any, model: Model | None = None) -> BaseInferenceSession:
            return serve(handles["training_client"])

    handles = {"training_client": model}
    elsewhere = RolloutCheck(Elsewhere(), handles, serve(model), PROSE)
    with pytest.raises(ConfigurationError, match=r"aren't in this process.*give .* a tolerance"):
        elsewhere.check(0)
    given = RolloutCheck(Elsewhere(), handles, serve(model), PROSE, tolerance=1e-6)
    assert given.check(0).verdict == "in sync"
    update(model, 1)
    stale = RolloutCheck(Elsewhere(), handles, serve(model), "A text of few tokens.", tolerance=0)
    assert stale.check(0).verdict == "in sync", "an exact zero is within any tolerance"


def test_tolerance_is_asked_for_where_the_wider_copy_fails(
    model: Any, tokenizer: Any, serve: Serve, tmp_path: Path
) -> None:
    class Full(TransformersSession):
        def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    class Narrow(attaching.Transformers):
        """An engine whose memory has no room for the rows of float64."""

        def attach(self, handles: Any, model: Model | None = None) -> BaseInferenceSession:
            session = super().attach(handles, model)
            if handles["model"].dtype == torch.float64:
                session.__class__ = Full
            return session

    handles = {"model": model, "tokenizer": tokenizer}
    found = RolloutCheck(Narrow(), handles, serve(model), PROSE, tmp_path / "rollout.jsonl")
    for _ in range(2):
        with pytest.raises(ConfigurationError) as caught:
            found.check(0)
        assert str(caught.value) == (
            "the rounding of the weights in training can't be measured: no window of a copy of "
            "them in float64 could be compared, as where memory runs out; give RolloutCheck a "
            "tolerance, in nats, or leave the copy more memory"
        )


def test_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = README.read_text(encoding="utf-8").partition("## Training against rollouts")[2]
    example = section.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"train_a_step": lambda model, tokenizer, step: update(model, step)}
    exec(compile(example, str(README), "exec"), names)
    lines = (tmp_path / "rollout.jsonl").read_text(encoding="utf-8").splitlines()
    found = [(line["step"], line["verdict"]) for line in map(json.loads, lines)]
    assert found == [(1, "in sync"), (2, "in sync"), (3, "stale weights")]
