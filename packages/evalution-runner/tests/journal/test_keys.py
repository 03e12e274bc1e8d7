from __future__ import annotations

import dataclasses
from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.journal.records import AnswerBase, make_answer_base, make_cache_key, make_request_key
from evalution.runs.run_identity import declare_run
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
    secret,
    speed_only,
)


@dataclass(slots=True)
class Plain(BaseEngine):
    dtype: str = "float32"
    extra: Any = None
    threads: int = speed_only(default=1)
    key: str | None = secret()

    def build(self, model: Model) -> BaseInferenceSession:
        raise NotImplementedError


@dataclass(slots=True)
class Other(Plain):
    pass


class Opaque:
    """Says nothing of what it holds."""


MODEL = Model("m")
POLICY = {"bos": "once"}
IDENTITY = {"model.safetensors": "00ff", "tokenizer.json": "11ee", "chat_template.jinja": "22dd"}


def base(
    engine: BaseEngine | None = None,
    model: Model = MODEL,
    identity: dict[str, Any] | None = IDENTITY,
    execution: dict[str, Any] | None = None,
    policy: dict[str, Any] = POLICY,
    tokenizer: dict[str, Any] | None = None,
) -> AnswerBase:
    return make_answer_base(
        engine=engine or Plain(),
        model=model,
        identity=identity,
        execution=execution,
        scoring_policy=policy,
        tokenizer=tokenizer,
    )


BASE = base()

texts = st.text(st.characters(), max_size=8)
ids = st.none() | st.lists(st.integers(0, 9), max_size=3)
messages = st.none() | st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system"])},
        optional={
            "content": texts | st.lists(st.fixed_dictionaries({"type": texts, "text": texts})),
            "name": texts,
        },
    ),
    max_size=2,
)
truncations = st.sampled_from(["left", "error"])
generations = st.builds(
    GenerationRequest,
    prompt=st.none() | texts,
    messages=messages,
    rendered_prompt=st.none() | texts,
    input_ids=ids,
    add_generation_prompt=st.booleans(),
    stop=st.lists(texts, max_size=2),
    max_new_tokens=st.integers(1, 3),
    num_beams=st.integers(1, 2),
    do_sample=st.booleans(),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 2),
    seed=st.none() | st.integers(0, 2),
    logprobs=st.none() | st.integers(0, 2),
    ignore_eos=st.booleans(),
    tools=messages,
    truncation=truncations,
)
scorings = st.builds(
    LoglikelihoodRequest, texts, texts, ids, ids, messages=messages, truncation=truncations
)
rollings = st.builds(RollingLoglikelihoodRequest, texts, ids)
requests = generations | scorings | rollings


def key(request: Any, base: AnswerBase = BASE, **place: Any) -> bytes | None:
    return make_request_key(
        base, **{"suite": "s", "row": 0, "position": 0, **place}, request=request
    )


@given(requests, requests)
def test_requests_share_a_key_exactly_if_they_are_equal(one: Any, other: Any) -> None:
    is_equal = type(one) is type(other) and one == other
    assert (key(one) == key(other)) is is_equal


@given(generations, st.data())
def test_every_field_but_metadata_counts(request: GenerationRequest, data: st.DataObject) -> None:
    other = data.draw(generations)
    for name in {f.name for f in dataclasses.fields(request)} - {"metadata"}:
        changed = dataclasses.replace(request, **{name: getattr(other, name)})
        assert (key(changed) == key(request)) is (changed == request)
    assert key(dataclasses.replace(request, metadata={"row": 1})) == key(request)


def test_key_depends_on_the_place_and_on_the_base() -> None:
    request = GenerationRequest("a")
    places = [
        {},
        {"suite": "t"},
        {"row": 1},
        {"position": 1},
        {"base": base(Plain(dtype="float16"))},
    ]
    found = {key(request, **place) for place in places} | {make_cache_key(BASE, request)}
    assert len(found) == len(places) + 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(base(Other()), id="engine"),
        pytest.param(base(Plain(dtype="float16")), id="option"),
        pytest.param(base(Plain(extra={"end_token": "a"})), id="option-like-a-secret"),
        pytest.param(base(Plain(extra={"end_token": "b"})), id="its-other-value"),
        pytest.param(base(identity={**IDENTITY, "model.safetensors": "00fe"}), id="weights"),
        pytest.param(base(identity={**IDENTITY, "tokenizer.json": "11ef"}), id="tokenizer"),
        pytest.param(base(identity={**IDENTITY, "chat_template.jinja": "2"}), id="template"),
        pytest.param(base(identity=None), id="unknown"),
        pytest.param(base(identity=None, model=Model("n")), id="unknown-elsewhere"),
        pytest.param(base(model=Model("m", tokenizer="t")), id="other-tokenizer"),
        pytest.param(base(model=Model("m", tokenizer_path="t")), id="tokenizer-path"),
        pytest.param(base(model=Model("m", revision="r")), id="revision"),
        pytest.param(base(model=Model("m", trust_remote_code=True)), id="own-code"),
        pytest.param(base(model=Model("m", model_kwargs={"a": 1})), id="model-kwargs"),
        pytest.param(base(model=Model("m", tokenizer_kwargs={"a": 1})), id="tokenizer-kwargs"),
        pytest.param(base(model=Model("m", chat_template_kwargs={"a": 1})), id="variables"),
        pytest.param(base(model=Model("m", chat_template_kwargs={"a": True})), id="true-is-not-1"),
        pytest.param(base(execution={"dtype": "float16"}), id="settled-dtype"),
        pytest.param(base(execution={"max_model_len": 8}), id="settled-window"),
        pytest.param(base(execution={"tokenizer": "tokenizer.json"}), id="read-tokenizer"),
        pytest.param(base(execution={"device": "cuda"}), id="settled-device"),
        pytest.param(base(tokenizer={"encoding": "00ff"}), id="encoding"),
        pytest.param(base(policy={"bos": "twice"}), id="policy"),
    ],
)
def test_one_models_answers_never_serve_another(other: AnswerBase) -> None:
    request = LoglikelihoodRequest("a", "b")
    assert other.digest != BASE.digest
    assert key(request, other) != key(request)
    assert make_cache_key(other, request) != make_cache_key(BASE, request)


@pytest.mark.parametrize(
    "same",
    [
        pytest.param(base(Plain(threads=4)), id="speed_only"),
        pytest.param(base(Plain(key="planted")), id="secret"),
        pytest.param(base(model=Model("m", label="my model")), id="label"),
        pytest.param(base(model=Model("moved")), id="moved"),
        pytest.param(base(identity=dict(reversed(IDENTITY.items()))), id="order"),
    ],
)
def test_what_changes_no_number_changes_no_key(same: AnswerBase) -> None:
    assert same == BASE
    cards = [base(execution={"device": f"cuda:{number}"}) for number in range(2)]
    assert cards[0] == cards[1]


def test_options_of_an_engine_in_another_count_as_its_own() -> None:
    inner = base(Plain(extra=Plain()))
    assert base(Plain(extra=Plain(threads=4))) == inner
    assert base(Plain(extra=Plain(dtype="float16"))) != inner
    assert base(Plain(extra=Other())) != inner
    record = {"name": "Plain"}
    declared = declare_run(Plain(extra=Plain()), MODEL, None, record)
    assert declare_run(Plain(extra=Plain(threads=4)), MODEL, None, record) == declared
    assert declare_run(Plain(extra=Other()), MODEL, None, record) != declared


@pytest.mark.parametrize(
    "unknowable",
    [
        pytest.param(base(identity=None), id="identity"),
        pytest.param(base(Plain(extra=Opaque())), id="option"),
        pytest.param(base(Plain(extra=[{1: Opaque()}])), id="nested-option"),
        pytest.param(base(model=Model("m", tokenizer=Opaque())), id="tokenizer"),
        pytest.param(base(model=Model("m", model_kwargs={"a": Opaque()})), id="model-kwargs"),
        pytest.param(base(identity={"a": Opaque()}), id="identity-of-an-object"),
        pytest.param(
            make_answer_base(
                engine=None, model=MODEL, identity=IDENTITY, execution={}, scoring_policy=POLICY
            ),
            id="lent-session",
        ),
    ],
)
def test_what_is_not_known_by_content_has_keys_in_its_run_alone(unknowable: AnswerBase) -> None:
    request = GenerationRequest("a")
    assert not unknowable.is_shareable
    assert key(request, unknowable) is not None
    assert make_cache_key(unknowable, request) is None


def test_variables_of_a_lent_sessions_template_count() -> None:
    def lent(variables: dict[str, Any] | None) -> AnswerBase:
        return make_answer_base(
            engine=None,
            model=MODEL,
            identity=None,
            execution=None,
            scoring_policy=POLICY,
            tokenizer=variables,
        )

    digests = {lent(each).digest for each in (None, {"thinks": True}, {"thinks": False})}
    assert len(digests) == 3
    assert lent({}) == lent(None)


def _user(content: object, **more: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content, **more}]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(GenerationRequest("a", do_sample=True, temperature=1.0), id="unseeded"),
        pytest.param(GenerationRequest("a", tools=[]), id="tools"),
        pytest.param(GenerationRequest(messages=_user("a", tool_calls=[])), id="calls"),
        pytest.param(
            GenerationRequest(messages=_user([{"type": "image", "url": "u"}])), id="image"
        ),
        pytest.param(GenerationRequest(messages=_user(None)), id="nothing"),
        pytest.param(LoglikelihoodRequest(messages=_user(["a"])), id="part-of-no-kind"),
    ],
)
def test_answer_that_may_not_be_shared_has_a_key_in_its_run_alone(request_: Any) -> None:
    assert key(request_) is not None
    assert make_cache_key(BASE, request_) is None


@pytest.mark.parametrize(
    "request_",
    [
        GenerationRequest("a"),
        GenerationRequest("a", do_sample=True, temperature=1.0, seed=1),
        GenerationRequest(messages=_user([{"type": "text", "text": "a"}])),
        LoglikelihoodRequest(messages=_user("a"), continuation="b"),
        RollingLoglikelihoodRequest("a"),
    ],
)
def test_answer_that_is_always_the_same_may_be_shared(request_: Any) -> None:
    assert make_cache_key(BASE, request_) is not None


@dataclass(slots=True)
class Enriched(GenerationRequest):
    image: Any = field(default=None, kw_only=True)


@pytest.mark.parametrize(
    "request_",
    [
        GenerationRequest(messages=_user([{"type": "image", "image": Opaque()}])),
        GenerationRequest(messages=_user([{1: "a"}])),
        Enriched("a"),
    ],
)
def test_content_that_can_not_be_spelled_out_has_no_key(request_: Any) -> None:
    assert key(request_) is None
    assert make_cache_key(BASE, request_) is None


def test_character_is_not_its_surrogates() -> None:
    assert key(GenerationRequest("\U0001f600")) != key(GenerationRequest("\ud83d\ude00"))


@pytest.mark.parametrize("spelled", [(1, 2), array("q", [1, 2]), range(1, 3)])
def test_ids_are_the_same_in_any_sequence(spelled: Any) -> None:
    assert key(GenerationRequest(input_ids=spelled)) == key(GenerationRequest(input_ids=[1, 2]))
