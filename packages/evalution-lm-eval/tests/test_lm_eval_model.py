"""An engine's session as a model of lm-eval."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM

from evalution_core import (
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    InvalidRequestError,
    LoglikelihoodOutput,
    Model,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_core.builtins import builtin_path
from evalution_lm_eval import EvalutionLM
from evalution_lm_eval.collection import FailedRequestError
from evalution_lm_eval.requests import ChatPrompt
from evalution_reference import Reference

PROMPT = "Question: What is 2 + 3?\nAnswer:"


@pytest.fixture
def model(session: BaseInferenceSession) -> EvalutionLM:
    return EvalutionLM(session=session)


def make_instances(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    return [
        Instance(kind, {}, given, number, metadata=("a_task", number, 1))
        for number, given in enumerate(arguments)
    ]


class Altered:
    """A session some of whose attributes are others."""

    def __init__(self, inner: Any, **attributes: Any):
        self._inner = inner
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def make_altered_model(session: Any, **attributes: Any) -> EvalutionLM:
    found: Any = Altered(session, **attributes)
    return EvalutionLM(session=found)


def test_pairs_are_scored_by_the_ids_of_lm_eval(session: Any, model: EvalutionLM) -> None:
    seen: list[Any] = []

    def noting(requests: Any, **options: Any) -> Any:
        return session.loglikelihood_continuous(
            ((key, seen.append(request) or request) for key, request in requests), **options
        )

    pairs = [(PROMPT + "  ", "five"), ("", "Question"), (PROMPT, " 2 + 3")]
    found = make_altered_model(session, loglikelihood_continuous=noting).loglikelihood(
        make_instances("loglikelihood", *pairs), disable_tqdm=True
    )
    by_text = sorted(seen, key=lambda request: pairs.index((request.context, request.continuation)))
    for (context, continuation), request in zip(pairs, by_text, strict=True):
        ids = (request.context_input_ids, request.continuation_input_ids)
        if context:
            assert ids == model._encode_pair(context, continuation)
        else:
            prefix = [model.prefix_token_id]
            assert ids == (prefix, model.tok_encode(continuation, add_special_tokens=False))
    assert all(logprob < 0 and isinstance(is_greedy, bool) for logprob, is_greedy in found)


def test_given_ids_are_scored_the_same(model: EvalutionLM) -> None:
    pair = (PROMPT, " 2 + 3")
    made = model._loglikelihood_tokens([(pair, *model._encode_pair(*pair))], disable_tqdm=True)
    assert made == model.loglikelihood(make_instances("loglikelihood", pair), disable_tqdm=True)


def test_stops_and_limit_apply_to_each_completion(model: EvalutionLM) -> None:
    whole, stopped, short = model.generate_until(
        make_instances(
            "generate_until",
            (PROMPT, {"until": [], "max_gen_toks": 12}),
            (PROMPT, {"until": ["=", ""], "max_gen_toks": 12}),
            (PROMPT, {"until": "\n\n", "max_new_tokens": 2}),
        ),
        disable_tqdm=True,
    )
    assert "=" in whole
    assert stopped == whole.partition("=")[0]
    assert whole.startswith(short)
    assert len(model.tok_encode(short, add_special_tokens=False)) <= 2


def test_answers_are_cached_one_by_one(session: Any, tmp_path: Path) -> None:
    cached = threading.Event()

    def slow(requests: Any, **options: Any) -> Iterator[Any]:
        for number, (key, answer) in enumerate(session.generate_continuous(requests, **options)):
            assert number == 0 or cached.is_set()
            yield key, answer

    model = make_altered_model(session, generate_continuous=slow)
    caching = CachingLM(model, str(tmp_path / "answers.db"))
    original = model.cache_hook.add_partial

    def add_partial(*given: Any) -> None:
        original(*given)
        cached.set()

    model.cache_hook.add_partial = add_partial  # pyright: ignore[reportAttributeAccessIssue]
    asked = make_instances("generate_until", *[(PROMPT, {"max_gen_toks": n}) for n in (2, 3, 4)])
    first = caching.generate_until(asked)
    assert len(caching.dbdict) == 3
    model._session = None  # pyright: ignore[reportAttributeAccessIssue]
    assert caching.generate_until(asked) == first


def make_failing_call(session: Any, call: str) -> Callable[..., Iterator[Any]]:
    def stream(requests: Any, **options: Any) -> Iterator[Any]:
        failures: list[Any] = []

        def left() -> Iterator[Any]:
            for key, request in requests:
                if key == 1:
                    failures.append((key, RequestFailure(InvalidRequestError("poisoned"))))
                else:
                    yield key, request

        yield from getattr(session, call)(left(), **options)
        yield from failures

    return stream


def test_failed_request_is_named_by_task_and_document(session: Any) -> None:
    model = make_altered_model(
        session, generate_continuous=make_failing_call(session, "generate_continuous")
    )
    with pytest.raises(
        FailedRequestError,
        match=r"generate_until request 1 \(task a_task, document 1\): InvalidRequestError: poisone",
    ):
        model.generate_until(
            make_instances("generate_until", (PROMPT, {}), ("b", {})), disable_tqdm=True
        )


def test_failed_request_counts_as_the_worst_answer_on_request(session: Any) -> None:
    model = make_altered_model(
        session, loglikelihood_continuous=make_failing_call(session, "loglikelihood_continuous")
    )
    model._on_failure = "worst"
    asked = make_instances("loglikelihood", (PROMPT, " 5"), (PROMPT, " 6"), (PROMPT, " 7"))
    scores = model.loglikelihood(asked, disable_tqdm=True)
    assert scores[1] == (float("-inf"), False)
    assert min(scores[0][0], scores[2][0]) > float("-inf")
    assert model.get_model_info()["evalution"]["failed_requests"] == 1


@pytest.mark.parametrize("broken", [("\ud800", " 6"), (PROMPT, " \ud800")])
def test_text_that_cant_be_encoded_fails_alone(
    session: Any, caplog: pytest.LogCaptureFixture, broken: tuple[str, str]
) -> None:
    model = make_altered_model(session)
    model._on_failure = "worst"
    asked = make_instances("loglikelihood", (PROMPT, " 5"), broken, (PROMPT, " 7"))
    scores = model.loglikelihood(asked, disable_tqdm=True)
    assert [score > float("-inf") for score, _ in scores] == [True, False, True]
    (message,) = caplog.messages
    assert message.startswith("loglikelihood request 1 (task a_task, document 1): InvalidRequest")
    assert "is not valid Unicode text" in message


@pytest.mark.parametrize(
    ("kind", "rest"),
    [("loglikelihood", " The"), ("generate_until", {"until": ["\n"], "max_gen_toks": 8})],
)
def test_cut_requests_are_counted_and_reported(
    caplog: pytest.LogCaptureFixture, kind: str, rest: Any
) -> None:
    with Reference(max_model_len=32).build(Model("builtin:tiny")) as session:
        model = EvalutionLM(session=session)
        sentence = "The cat sees a dog. "
        ask = getattr(model, kind)
        ask(make_instances(kind, (sentence, rest)), disable_tqdm=True)
        assert not caplog.messages
        ask(make_instances(kind, (sentence, rest), (sentence * 40, rest)), disable_tqdm=True)
        (message,) = caplog.messages
        assert message.startswith(f"1 of 2 {kind} requests were longer than the model takes")
        assert re.search(r"request 1 \(task a_task, document 1\), by \d+ tokens$", message)
        ask(make_instances(kind, (sentence * 40, rest)), disable_tqdm=True)
        assert model.get_model_info()["evalution"]["truncated_requests"] == 2


def test_failed_request_is_never_cached(session: Any, tmp_path: Path) -> None:
    model = make_altered_model(
        session, generate_continuous=make_failing_call(session, "generate_continuous")
    )
    model._on_failure = "worst"
    caching = CachingLM(model, str(tmp_path / "answers.db"))
    with pytest.raises(FailedRequestError, match="poisoned"):
        caching.generate_until(make_instances("generate_until", (PROMPT, {}), ("b", {})))


def test_unanswered_request_is_named(session: Any) -> None:
    model = make_altered_model(session, generate_continuous=lambda requests, **options: iter(()))
    with pytest.raises(FailedRequestError, match=r"request 0 .*: the session left it unanswered"):
        model.generate_until(make_instances("generate_until", (PROMPT, {})), disable_tqdm=True)


def test_engine_without_is_greedy_is_refused(session: Any) -> None:
    def unsure(requests: Any, **options: Any) -> Iterator[Any]:
        return ((key, LoglikelihoodOutput(-1.0, None, 1)) for key, _ in requests)

    model = make_altered_model(session, loglikelihood_continuous=unsure)
    with pytest.raises(FailedRequestError, match="needs is_greedy of each continuation"):
        model.loglikelihood(make_instances("loglikelihood", (PROMPT, " 5")), disable_tqdm=True)


@pytest.mark.parametrize(
    ("call", "arguments", "missing"),
    [
        ("loglikelihood", (PROMPT, " 5"), "loglikelihood"),
        ("loglikelihood_rolling", (PROMPT,), "rolling"),
        ("generate_until", (PROMPT, {}), "generate"),
    ],
)
def test_missing_capability_is_named_with_the_task(
    session: Any, call: str, arguments: tuple[Any, ...], missing: str
) -> None:
    model = make_altered_model(session, capabilities=frozenset({Capability.CHAT}))
    with pytest.raises(
        UnsupportedRequestError, match=f"task a_task needs {missing}; the capabilities .* chat"
    ):
        getattr(model, call)(make_instances(call, arguments), disable_tqdm=True)


def test_unknown_generation_setting_is_refused_before_work(session: Any) -> None:
    model = make_altered_model(session, generate_continuous=None)
    asked = make_instances("generate_until", (PROMPT, {}), (PROMPT, {"top_q": 0.1}))
    with pytest.raises(ConfigurationError, match=r"'top_q' can't be asked .*did you mean 'top_p'"):
        model.generate_until(asked, disable_tqdm=True)


def test_session_without_token_ids_is_asked_by_text(session: Any, model: EvalutionLM) -> None:
    blind = make_altered_model(session, capabilities=session.capabilities - {Capability.TOKEN_IDS})
    asked = make_instances("loglikelihood", (PROMPT, " 5"), ("", "Question"))
    assert blind.loglikelihood(asked, disable_tqdm=True) == model.loglikelihood(
        asked, disable_tqdm=True
    )
    hidden = make_altered_model(session, tokenizer=None)
    with pytest.raises(UnsupportedRequestError, match="keeps its tokenizer to itself"):
        hidden.tok_encode("a")


def test_engine_with_a_hidden_template_gets_the_messages(session: Any, model: EvalutionLM) -> None:
    hidden = make_altered_model(session, tokenizer=None)
    chat = [{"role": "user", "content": "What is 2 + 3?"}]
    prompt = hidden.apply_chat_template(chat)
    assert isinstance(prompt, ChatPrompt)
    settings = {"max_gen_toks": 6}
    ours = hidden.generate_until(make_instances("generate_until", (prompt, settings)), True)
    rendered = model.apply_chat_template(chat)
    assert ours == model.generate_until(
        make_instances("generate_until", (rendered, settings)), True
    )
    scored = hidden.loglikelihood(make_instances("loglikelihood", (prompt, "5")), True)
    right = model.loglikelihood(make_instances("loglikelihood", (rendered, "5")), True)
    assert scored == [(pytest.approx(right[0][0]), right[0][1])]
    with pytest.raises(UnsupportedRequestError, match="begins the answer"):
        hidden.apply_chat_template(chat, add_generation_prompt=False)


def test_chat_template_is_returned_and_other_names_are_refused(model: EvalutionLM) -> None:
    source = model.chat_template(True)
    assert source
    assert "messages" in source
    assert model.chat_template() is None
    assert "/" not in model.tokenizer_name
    with pytest.raises(ConfigurationError, match="no chat template named 'rag'"):
        model.chat_template("rag")


def test_variables_of_the_chat_template_reach_prompt_and_cache_name(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{{ tone }}")
    names: set[str] = set()
    for variables, prompt in (({}, "say"), ({"tone": "!"}, "say!"), ({"tone": "?"}, "say?")):
        model = EvalutionLM.create_from_arg_obj(
            {"engine": "Reference", "path": str(folder), "chat_template_kwargs": variables}
        )
        assert model.apply_chat_template([{"role": "user", "content": "say"}]) == prompt
        names.add(model.tokenizer_name)
    assert len(names) == 3


@pytest.mark.parametrize(
    ("sizes", "cap"),
    [((1, None), None), (("auto:4", None), None), (("8", None), 8), ((1, 2), 2), ((None, 3), 3)],
)
def test_batch_sizes_of_lm_eval_cap_requests_in_flight(
    session: Any, sizes: tuple[Any, Any], cap: int | None
) -> None:
    model = EvalutionLM(session=session, batch_size=sizes[0], max_batch_size=sizes[1])
    assert model._cap == cap


@pytest.mark.parametrize("size", ["many", 0])
def test_invalid_batch_size_is_refused(session: Any, size: Any) -> None:
    with pytest.raises(ConfigurationError, match="batch_size must be 'auto' or an int of at least"):
        EvalutionLM(session=session, batch_size=size)


def test_live_session_takes_no_options(session: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes no further arguments, got dtype"):
        EvalutionLM(session=session, dtype="float32")
