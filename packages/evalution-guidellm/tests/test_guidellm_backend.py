"""The backend under GuideLLM's life cycle, with the tiny model and without worker processes."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("guidellm", reason="guidellm isn't installed; see tools/envs")

from guidellm.schemas import GenerationRequest, GenerationResponse, RequestInfo
from guidellm.schemas.backends import BackendArgs
from pydantic import ValidationError

from evalution_core import ConfigurationError, InvalidRequestError, Model, load_engine
from evalution_guidellm.arguments import EvalutionBackendArgs
from evalution_guidellm.backend import EvalutionBackend

pytestmark = pytest.mark.wide

R = TypeVar("R")
COMPLETIONS = "/v1/completions"
ENGINES = Path(__file__).with_name("engines")


def backend(**fields: Any) -> EvalutionBackend:
    given = {"engine": "Reference", "model": "builtin:tiny", "request_format": COMPLETIONS}
    arguments = BackendArgs.model_validate({"kind": "evalution", **given, **fields})
    assert isinstance(arguments, EvalutionBackendArgs)
    return EvalutionBackend(arguments)


def make_request(
    text: str = "The cat", tokens: int | None = 6, **columns: list[Any]
) -> GenerationRequest:
    request = GenerationRequest(columns={"text_column": [text], **columns})
    request.output_metrics.text_tokens = tokens
    return request


def run(work: Coroutine[Any, Any, R]) -> R:
    async def in_time() -> R:
        return await asyncio.wait_for(work, 120)

    return asyncio.run(in_time())


async def collect_answers(
    started: EvalutionBackend, request: GenerationRequest, **more: Any
) -> tuple[list[GenerationResponse | None], RequestInfo]:
    info = RequestInfo(request_id=request.request_id)
    found: AsyncIterator[Any] = started.resolve(request, info, **more)
    return [response async for response, _ in found], info


async def read_one_answer(
    configured: EvalutionBackend, request: GenerationRequest, **more: Any
) -> tuple[GenerationResponse, RequestInfo]:
    await configured.process_startup()
    try:
        found, info = await collect_answers(configured, request, **more)
    finally:
        await configured.process_shutdown()
    response = found[-1]
    assert response is not None
    return response, info


def test_answer_equals_the_sessions_completion() -> None:
    response, _ = run(read_one_answer(backend(), make_request(tokens=6)))
    with load_engine("Reference")().build(Model("builtin:tiny")) as session:
        from evalution_core import GenerationRequest as Plain

        (output,) = session.generate([Plain("The cat", max_new_tokens=6, ignore_eos=True)])
    assert response.text == output.text
    assert response.input_metrics.text_tokens == output.prompt_tokens
    assert response.output_metrics.text_tokens == output.completion_tokens == 6


def test_every_token_is_timed_and_the_first_is_reported() -> None:
    async def work() -> tuple[list[GenerationResponse | None], RequestInfo]:
        started = backend()
        await started.process_startup()
        found = await collect_answers(started, make_request(tokens=40))
        await started.process_shutdown()
        return found

    found, info = run(work())
    timings = info.timings
    assert [response is None for response in found] == [True, False]
    moments = [
        timings.request_start,
        timings.first_request_iteration,
        timings.first_token_iteration,
        timings.last_token_iteration,
        timings.request_end,
    ]
    assert None not in moments
    assert moments == sorted(moments)  # pyright: ignore[reportArgumentType]
    assert timings.first_output_token_iteration == timings.first_token_iteration
    assert 1 < timings.token_iterations <= 40


@pytest.mark.parametrize(
    "fields", [{"stream": False}, {"engine": "tests_guidellm_engines:SilentEngine"}]
)
def test_no_token_is_timed_without_a_stream(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ENGINES))
    response, info = run(read_one_answer(backend(**fields), make_request(tokens=6)))
    assert response.output_metrics.text_tokens == 6
    assert info.timings.first_token_iteration is None
    assert info.timings.token_iterations == 0
    assert info.timings.request_end is not None


def test_chat_is_rendered_with_its_history() -> None:
    earlier = make_request("one")
    reply = GenerationResponse(request_id=earlier.request_id, request_args=None, text="two")
    chat = backend(request_format="/v1/chat/completions")
    first, _ = run(read_one_answer(chat, make_request("three")))
    second, _ = run(read_one_answer(chat, make_request("three"), history=[(earlier, reply)]))
    body = json.loads(second.request_args or "")["body"]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert (second.input_metrics.text_tokens or 0) > (first.input_metrics.text_tokens or 0)


def test_backend_restarts_and_its_pickle_holds_no_session() -> None:
    async def work() -> list[str | None]:
        started = backend()
        texts: list[str | None] = []
        for _ in range(2):
            await started.process_startup()
            await started.validate()
            with pytest.raises(RuntimeError, match="runs already"):
                await started.process_startup()
            copy = pickle.loads(pickle.dumps(started))
            with pytest.raises(RuntimeError, match="call process_startup"):
                await copy.validate()
            found, _ = await collect_answers(started, make_request())
            assert found[-1] is not None
            texts.append(found[-1].text)
            await started.process_shutdown()
            await started.process_shutdown()
        return texts

    first, second = run(work())
    assert first == second


def test_cancelled_request_yields_its_text_so_far_and_frees_its_slot() -> None:
    async def work() -> GenerationResponse:
        started = backend(engine="tests_guidellm_engines:EndlessEngine")
        await started.process_startup()
        request = make_request(tokens=10_000)
        info = RequestInfo(request_id=request.request_id)
        seen: list[GenerationResponse | None] = []

        async def consume() -> None:
            async for response, _ in started.resolve(request, info):
                seen.append(response)

        task = asyncio.ensure_future(consume())
        while not seen:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await collect_answers(started, make_request(tokens=1))
        session: Any = started._session
        assert session.requests_in_flight == 0
        await started.process_shutdown()
        assert seen[-1] is not None
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ENGINES))
        partial = run(work())
    assert partial.text
    assert 1 <= (partial.output_metrics.text_tokens or 0) < 10_000


def test_too_long_prompt_fails_its_request_alone() -> None:
    async def work() -> None:
        started = backend()
        await started.process_startup()
        with pytest.raises(InvalidRequestError, match="max_new_tokens"):
            await collect_answers(started, make_request("word " * 5000))
        found, _ = await collect_answers(started, make_request())
        assert found[-1] is not None
        await started.process_shutdown()

    run(work())


def test_missing_chat_template_is_found_before_the_load(tmp_path: Any) -> None:
    from evalution_core.builtins import builtin_path

    source = builtin_path("builtin:tiny", "safetensors")
    for file in source.iterdir():
        if file.is_file() and file.name not in ("chat_template.jinja", "tokenizer_config.json"):
            (tmp_path / file.name).symlink_to(file)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    async def work(request_format: str) -> None:
        started = backend(model=str(tmp_path), request_format=request_format)
        await started.process_startup()
        try:
            await started.validate()
        finally:
            await started.process_shutdown()

    run(work(COMPLETIONS))
    with pytest.raises(InvalidRequestError, match="chat template"):
        run(work("/v1/chat/completions"))


def test_limits_are_the_engines_and_processes_default_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ENGINES))
    assert backend().processes_limit == 1
    assert backend().requests_limit is None
    assert backend(processes=4).processes_limit == 4
    limited = backend(engine="tests_guidellm_engines:LimitedEngine", processes=4)
    assert (limited.processes_limit, limited.requests_limit) == (2, 3)


def test_default_model_names_the_tokenizer(tokenizer_folder: str) -> None:
    assert run(backend().default_model()) == tokenizer_folder
    other = backend(model_options={"tokenizer_path": "elsewhere"})
    assert run(other.default_model()) == "elsewhere"
    assert run(backend(model="some/model").default_model()) == "some/model"
    with pytest.raises(ConfigurationError, match=r"Reference needs a model; add model=…"):
        run(backend(model=None).default_model())


def test_check_first_false_loads_nothing_in_the_main_process() -> None:
    assert backend().backend_defines_model is False
    assert backend(check_first=False).backend_defines_model is True


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "Referenc"}, "no engine 'Referenc' is installed; did you mean 'Reference'"),
        ({"options": {"dtyp": "x"}}, "has no option 'dtyp'; did you mean 'dtype'"),
        ({"model_options": {"revison": "x"}}, "did you mean 'revision'"),
        ({"extras": {"body": {"topp": 1}}}, "did you mean 'top_p'"),
        ({"max_tokens": 0}, "greater than 0"),
        ({"modell": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_argument_is_refused_at_construction(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        backend(**fields)


def test_keys_are_redacted_in_reports() -> None:
    options = {"base_url": "http://127.0.0.1:9", "api_key": "a-secret-of-the-test"}
    configured = backend(engine="OpenAICompatible", options=options)
    assert configured.info["options"] == {"base_url": "http://127.0.0.1:9", "api_key": "***"}
    headers = {"base_url": "http://127.0.0.1:9", "extra_headers": {"X-Odd": "odd-0815-0815"}}
    assert "odd-0815" not in str(backend(engine="OpenAICompatible", options=headers).info)
    assert "a-secret" not in repr(configured._arguments)
    assert pickle.loads(pickle.dumps(configured))._arguments.options == options


def test_extras_reach_the_request() -> None:
    extras = {"body": {"temperature": 1.5, "seed": 7, "stop": ["\n"]}}
    sampled, _ = run(read_one_answer(backend(extras=extras), make_request(tokens=20)))
    again, _ = run(read_one_answer(backend(extras=extras), make_request(tokens=20)))
    greedy, _ = run(read_one_answer(backend(), make_request(tokens=20)))
    assert sampled.text == again.text != greedy.text


def test_data_with_tools_is_refused() -> None:
    tools = [json.dumps([{"name": "add", "parameters": {}}])]
    chat = backend(request_format="/v1/chat/completions")
    with pytest.raises(NotImplementedError, match="tools"):
        run(read_one_answer(chat, make_request(tools_column=tools)))
