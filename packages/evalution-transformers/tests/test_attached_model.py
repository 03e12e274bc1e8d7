"""A session on the caller's own model leaves it as it was."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from evalution_core import (
    ConfigurationError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
)
from evalution_transformers import Transformers, TransformersCompat

ENGINES = [Transformers, TransformersCompat]


@pytest.fixture
def handles(write_checkpoint: Callable[..., Path]) -> dict[str, Any]:
    folder = write_checkpoint()
    return {
        "model": transformers.AutoModelForCausalLM.from_pretrained(folder),
        "tokenizer": transformers.AutoTokenizer.from_pretrained(folder),
    }


def use(session: Any) -> None:
    session.loglikelihood([LoglikelihoodRequest("w5 w6", " w7")])
    session.loglikelihood_rolling([RollingLoglikelihoodRequest("w5 w6 w7")])
    hot: dict[str, Any] = {"max_new_tokens": 4, "do_sample": True, "temperature": 1.0}
    session.generate([GenerationRequest("w5", max_new_tokens=4), GenerationRequest("w5", **hot)])


@pytest.mark.parametrize("kind", ENGINES)
def test_attached_model_is_left_unchanged(
    kind: type[TransformersCompat], handles: dict[str, Any]
) -> None:
    model = handles["model"].train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    grads = [weight.requires_grad for weight in model.parameters()]
    own = model.generation_config
    weights = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    with kind().attach(handles) as session:
        use(session)
        assert [module.training for module in model.modules()] == modes, "between two calls too"
        session.gc()
    assert [module.training for module in model.modules()] == modes
    assert [weight.requires_grad for weight in model.parameters()] == grads
    assert model.generation_config is own
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    loss = model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss
    loss.backward()
    assert model.lm_head.weight.grad is not None, "it trains on"


@pytest.mark.parametrize("kind", ENGINES)
def test_attached_model_answers_as_its_checkpoint(
    kind: type[TransformersCompat], handles: dict[str, Any], write_checkpoint: Callable[..., Path]
) -> None:
    pair = LoglikelihoodRequest("w5 w6", " w7 w8")
    with kind(device="cpu").build(Model(str(write_checkpoint(name="again")))) as session:
        expected = session.loglikelihood([pair])
    with kind().attach(handles) as session:
        assert session.loglikelihood([pair]) == expected
        assert session.identity() is None
        assert session.describe_execution()["attached"] is True


@pytest.mark.parametrize("kind", ENGINES)
def test_changed_weights_change_the_next_score(
    kind: type[TransformersCompat], handles: dict[str, Any]
) -> None:
    pair = LoglikelihoodRequest(" ".join(f"w{number}" for number in range(3, 60)), " w7")
    with kind().attach(handles) as session:
        (before,) = session.loglikelihood([pair])
        with torch.no_grad():
            handles["model"].model.layers[0].self_attn.v_proj.weight.mul_(1.7)
        (after,) = session.loglikelihood([pair])
    with kind().attach(handles) as session:
        (fresh,) = session.loglikelihood([pair])
    assert after.logprob == pytest.approx(fresh.logprob, abs=1e-5)
    assert abs(after.logprob - before.logprob) > 1e-3


@pytest.mark.parametrize("kind", ENGINES)
def test_changed_weights_change_the_next_text(
    kind: type[TransformersCompat], handles: dict[str, Any]
) -> None:
    prompt = " ".join(f"w{number}" for number in range(3, 60))
    request = GenerationRequest(prompt, max_new_tokens=3, logprobs=1, ignore_eos=True)
    with kind().attach(handles) as session:
        session.generate([request])
        with torch.no_grad():
            handles["model"].model.layers[0].self_attn.v_proj.weight.mul_(1.7)
        (after,) = session.generate([request])
    with kind().attach(handles) as session:
        (fresh,) = session.generate([request])
    assert after.token_ids == fresh.token_ids
    assert after.token_logprobs == pytest.approx(fresh.token_logprobs, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 2])
def test_model_is_in_its_callers_state_between_steps(handles: dict[str, Any], beams: int) -> None:
    model = handles["model"].train()
    own, state = model.generation_config, torch.get_rng_state()
    hot: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "num_beams": beams}
    with TransformersCompat().attach(handles) as session:
        loop: Any = session._generation
        seen: list[bool] = []
        run = loop._generate

        def watch(feed: Any) -> Any:
            for events in run(feed):
                same = torch.equal(torch.get_rng_state(), state)
                seen.append(model.training and model.generation_config is own and same)
                yield events

        loop._generate = watch
        session.generate([GenerationRequest("w5", max_new_tokens=6, ignore_eos=True, **hot)])
    assert len(seen) > 3
    assert all(seen)


def test_autocast_does_not_change_answers(handles: dict[str, Any]) -> None:
    pair = LoglikelihoodRequest("w5 w6", " w7 w8")
    with Transformers().attach(handles) as session:
        expected = session.loglikelihood([pair])
    with torch.autocast("cpu", dtype=torch.bfloat16), Transformers().attach(handles) as session:
        assert session.loglikelihood([pair]) == expected
        assert session.describe_execution()["scoring"] == "shared prefixes"


def test_a_compiled_model_answers_as_the_model_in_it(handles: dict[str, Any]) -> None:
    pair = LoglikelihoodRequest("w5 w6", " w7 w8")
    with Transformers().attach(handles) as session:
        expected = session.loglikelihood([pair])
    compiled: Any = torch.compile(handles["model"], backend="eager")
    with Transformers().attach({**handles, "model": compiled}) as session:
        assert session.loglikelihood([pair]) == expected


@pytest.mark.parametrize("given", [None, "gpt2", object()])
def test_another_kind_of_tokenizer_is_refused(handles: dict[str, Any], given: Any) -> None:
    with pytest.raises(ConfigurationError, match="attach takes a tokenizer of Transformers"):
        Transformers().attach({**handles, "tokenizer": given})


def test_handles_must_be_a_mapping(handles: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="a mapping with model and tokenizer"):
        Transformers().attach(handles["model"])


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's use of it
def test_an_adapters_model_answers_with_the_adapter(handles: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(handles["model"], settings)
    pair = LoglikelihoodRequest("w5 w6", " w7 w8")
    with Transformers().attach({**handles, "model": adapted}) as session:
        (found,) = session.loglikelihood([pair])
        assert session.describe_execution()["scoring"] == "shared prefixes"
    adapted.eval()
    with torch.no_grad():
        logprobs = adapted(input_ids=torch.tensor([[5, 6, 7]])).logits[0].log_softmax(-1)
    right = float(logprobs[1, 7] + logprobs[2, 8])
    assert found.logprob == pytest.approx(right, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "takes a causal model of Transformers, got NoneType"),
        ({"model": torch.nn.Linear(2, 2)}, "got Linear; a wrapped one .* must be unwrapped"),
    ],
)
def test_another_kind_of_handle_is_refused(
    handles: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Transformers().attach({**handles, **change})


@pytest.mark.parametrize("kind", ENGINES)
def test_close_frees_a_loaded_model(
    kind: type[TransformersCompat], write_checkpoint: Callable[..., Path]
) -> None:
    session = kind(device="cpu").build(Model(str(write_checkpoint())))
    use(session)
    loaded: Any = session._model
    there = weakref.ref(loaded)
    del loaded
    session.close()
    gc.collect()
    assert there() is None


def test_a_missing_handle_is_named() -> None:
    with pytest.raises(ConfigurationError, match="model and tokenizer; tokenizer missing"):
        Transformers().attach({"model": None})


def test_loading_options_are_refused_for_an_attached_model(handles: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="dtype, device can't be set for a model that is"):
        Transformers(dtype="float32", device="cpu").attach(handles)


@pytest.mark.parametrize("kind", ENGINES)
def test_chat_of_an_attached_model_is_rendered_with_the_variables(
    kind: type[TransformersCompat], handles: dict[str, Any]
) -> None:
    source = "{{ messages[0].content }}{% if thinks is defined and not thinks %} w7{% endif %}"
    handles["tokenizer"].chat_template = source
    model = Model("attached", chat_template_kwargs={"thinks": False})
    asked = [GenerationRequest(messages=[{"role": "user", "content": "w5"}], max_new_tokens=1)]
    with kind().attach(handles, model) as session:
        assert session.generate(asked)[0].prompt == "w5 w7"
    with kind().attach(handles) as session:
        assert session.generate(asked)[0].prompt == "w5"
    assert handles["tokenizer"].chat_template == source
    handles["tokenizer"].chat_template = None
    with pytest.raises(ConfigurationError, match="sets thinks, and this model has no chat templ"):
        kind().attach(handles, model)
