"""A model whose tokenizer has no chat template."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from evalution_conformance.assertions import (
    assert_refused,
    assert_same_logprobs,
    assert_same_text,
    assert_same_values,
    assert_tokens_agree,
)
from evalution_conformance.probes import (
    CHAT_IN_SPACES,
    CHATS,
    PROMPTS,
    SENTENCE,
    find_plain_completion,
    put_behind_words,
)
from evalution_conformance.reference_values import MODEL, load_reference_values, require_cases
from evalution_conformance.subject import Subject
from evalution_conformance.suite import fills_the_window, needs
from evalution_core import (
    Capability,
    ContextLengthError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    Model,
)
from evalution_core.builtins import builtin_path

_CONFIG = "tokenizer_config.json"


@contextmanager
def model_without_template(subject: Subject) -> Generator[Model]:
    """The one that the vendor names, else `builtin:tiny` with a copy of its tokenizer's files."""
    if subject.untemplated is not None:
        yield subject.untemplated
        return
    if subject.model.path != MODEL:
        pytest.skip("no model without a chat template is given as `untemplated`")
    source = builtin_path(MODEL, "reference_values").parent
    with TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "special_tokens_map.json"):
            shutil.copy(source / name, folder)
        config = json.loads((source / _CONFIG).read_text("utf-8"))
        config.pop("chat_template", None)
        (Path(folder) / _CONFIG).write_text(json.dumps(config), "utf-8")
        yield dataclasses.replace(subject.model, tokenizer_path=folder)


_BAD_FIELDS: tuple[dict[str, Any], ...] = (
    {"prompt": None},
    {"max_new_tokens": 0},
    {"max_new_tokens": True},
    {"num_beams": 0},
    {"stop": [""]},
    {"stop": "\n"},
    {"temperature": -1.0},
    {"top_p": 0.0},
    {"top_k": -1},
    {"truncation": "middle"},
)
_UNHEEDED: tuple[dict[str, Any], ...] = (
    {"temperature": 5.0},
    {"temperature": 5.0, "top_k": 50},
    {"temperature": 5.0, "top_p": 0.9},
    {"temperature": 5.0, "seed": 1},
)
"""Settings of samples: without `do_sample` they change nothing."""
_LARGE_BATCH = 16
_LONG_HEAD = 240
"""Characters that several prompts begin with: a few blocks of a prefix cache."""
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather_at", "parameters": {"type": "object", "properties": {}}},
}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@needs(Capability.GENERATE)
class GenerationChecks:
    def test_a_batch_answers_as_its_requests_alone(self, subject: Subject) -> None:
        """One output for each request, in order; none depends on its batch neighbours."""
        assert subject.generate() == [], "an empty list must give an empty list"
        probes = [*PROMPTS, SENTENCE, *reversed(PROMPTS)]
        size = min(subject.session.info.preferred_batch_size or _LARGE_BATCH, _LARGE_BATCH)
        prompts = put_behind_words(probes, max(len(probes), 2 * size + 1))
        limits = [1 + index * 5 % subject.max_new_tokens for index in range(len(prompts))]
        requests = [
            GenerationRequest(prompt, max_new_tokens=limit)
            for prompt, limit in zip(prompts, limits, strict=True)
        ]
        # Where a batch ends, faults show first, and in values sooner than in texts.
        for request in requests[len(probes) :] if subject.declares(Capability.LOGPROBS) else ():
            request.logprobs = 0
        compared = {*range(len(probes)), *range(size - 1, len(prompts), size), len(prompts) - 1}
        outputs = subject.generate(*requests)
        assert len(outputs) == len(requests), f"{len(requests)} requests, {len(outputs)} outputs"
        for index, (request, output) in enumerate(zip(requests, outputs, strict=True)):
            assert output.prompt == request.prompt, f"output {index} belongs to another request"
            if index in compared:
                rule = f"request {index} is answered otherwise in a batch than alone"
                alone = subject.complete(request)
                assert_same_values(subject, output, alone, rule)
                assert_same_text(subject, request, output, alone, rule)

    def test_earlier_prompts_change_no_answer(self, subject: Subject) -> None:
        """An answer doesn't depend on what was asked before: no stale prefix is fed."""
        requests = _make_prompts_with_one_head(subject)
        answers = [subject.complete(request) for request in requests]
        follow_ups = _follow_up(subject, requests[0], answers[0])
        answers += [subject.complete(request) for request in follow_ups]
        requests += follow_ups
        with subject.fresh() as session:
            for request, answer in reversed(list(zip(requests, answers, strict=True))):
                (expected,) = session.generate([request])
                rule = f"the answer to {expected.prompt!r} depends on earlier prompts"
                assert_same_text(subject, request, answer, expected, rule)
                if answer.token_logprobs is not None and answer.text == expected.text:
                    found, wanted = answer.token_logprobs, expected.token_logprobs
                    assert_same_logprobs(subject, found, wanted, rule)

    def test_batch_size_changes_no_answer(self, subject: Subject) -> None:
        """`batch_size` is a cap on what runs at once, and changes nothing else."""
        requests = [subject.request(prompt) for prompt in PROMPTS]
        free = subject.generate(*requests)
        capped = subject.session.generate(requests, batch_size=1)
        for request, found, expected in zip(requests, capped, free, strict=True):
            assert_same_text(subject, request, found, expected, "batch_size=1 changes the text")

    def test_greedy_is_repeatable_at_any_temperature(self, subject: Subject) -> None:
        """`do_sample=False` is greedy whatever the temperature, and twice the same."""
        request = subject.request(PROMPTS[0])
        first = subject.complete(request)
        again = subject.complete(request)
        assert_same_text(subject, request, again, first, "greedy text differs the second time")
        for plain in (request, subject.request(PROMPTS[1])):
            asked = (dataclasses.replace(plain, **setting) for setting in _UNHEEDED)
            expected, *found = subject.generate(plain, *asked)
            for setting, output in zip(_UNHEEDED, found, strict=True):
                rule = f"{setting} changes greedy text"
                assert_same_text(subject, plain, output, expected, rule)

    @needs(Capability.TOKEN_IDS)
    def test_ids_are_completed_as_their_text(self, subject: Subject) -> None:
        """`input_ids` are fed as they are, before any other field; a prompt with the defaults.

        An empty prompt is an empty context.
        """
        for prompt in (*PROMPTS[:3], ""):
            if not prompt and not subject.can_be_empty:
                continue
            token_ids = subject.prompt_ids(prompt) or [subject.conditioning_id]
            ids = subject.request(SENTENCE, rendered_prompt=SENTENCE, input_ids=token_ids)
            text = subject.request(prompt)
            found, expected = subject.generate(ids, text)
            if found.prompt_tokens is not None and expected.prompt_tokens is not None:
                assert found.prompt_tokens == len(ids.input_ids or ()), (
                    f"{len(ids.input_ids or ())} input_ids were given, {found.prompt_tokens} fed"
                )
                assert expected.prompt_tokens == found.prompt_tokens, (
                    f"{prompt!r} is {found.prompt_tokens} tokens, {expected.prompt_tokens} were fed"
                )
            assert_same_text(subject, text, found, expected, "ids and text of a prompt differ")

    @needs(Capability.CHAT)
    def test_messages_are_completed_as_their_rendering(self, subject: Subject) -> None:
        """`messages` are rendered by the chat template; `prompt` of the output is the rendering.

        A rendered prompt counts before messages, and these before a prompt.
        """
        for chat in CHATS:
            messages = subject.request(SENTENCE, messages=chat)
            expected = subject.complete(messages)
            assert chat[-1]["content"] in expected.prompt, "the output's prompt isn't the rendering"
            rendered = subject.request(
                SENTENCE, rendered_prompt=expected.prompt, messages=CHAT_IN_SPACES
            )
            found = subject.complete(rendered)
            assert_same_text(subject, messages, found, expected, "messages and rendering differ")

    @needs(Capability.CHAT)
    def test_rendered_chat_has_one_bos(self, subject: Subject) -> None:
        """Exactly one BOS where the tokenizer adds one; never doubled by a template."""
        output = subject.complete(
            GenerationRequest(messages=CHATS[0], max_new_tokens=subject.max_new_tokens)
        )
        if output.prompt_tokens is None:
            pytest.skip("the session doesn't report prompt_tokens")
        expected = len(subject.prompt_ids(output.prompt))
        assert output.prompt_tokens == expected, (
            f"the rendered chat is {expected} tokens with one BOS, {output.prompt_tokens} were fed"
        )

    @needs(Capability.CHAT)
    def test_messages_without_a_template_are_refused(self, subject: Subject) -> None:
        """Messages without a chat template are refused, never improvised."""
        with model_without_template(subject) as model, subject.fresh(model=model) as session:
            request = GenerationRequest(messages=CHATS[0], max_new_tokens=1)
            assert_refused(
                lambda: session.generate([request]),
                InvalidRequestError,
                "messages without a chat template",
            )

    @needs(Capability.TOOLS)
    def test_tools_are_rendered_or_refused(self, subject: Subject) -> None:
        """Tool definitions are rendered into a chat prompt, or the template's lack of them said."""
        request = GenerationRequest(messages=CHATS[0], max_new_tokens=1, tools=[_TOOL])
        problem = "the tool isn't in the prompt"
        try:
            is_kept = "weather_at" in subject.complete(request).prompt
        except InvalidRequestError as error:
            problem = f"tools are refused, and not for a template that reads none: {error}"
            is_kept = "template" in str(error)
        assert is_kept, problem

    @needs(Capability.MULTIMODAL)
    def test_parts_that_are_not_text_are_not_dropped(self, subject: Subject) -> None:
        """A message part that isn't text is used or refused, never ignored."""
        chat = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, _IMAGE]}]
        request = GenerationRequest(messages=chat, max_new_tokens=1)
        assert_refused(lambda: subject.complete(request), InvalidRequestError, "an empty image")

    @needs(Capability.BEAMS)
    def test_beams_are_searched_or_refused(self, subject: Subject) -> None:
        """`num_beams` above one is a beam search, or refused before any work."""
        request = subject.request(PROMPTS[0], num_beams=2)
        first, second = subject.complete(request), subject.complete(request)
        assert first.text == second.text, "a beam search differs the second time"

    def test_max_new_tokens_is_kept(self, subject: Subject) -> None:
        """No more than `max_new_tokens`; `finish_reason` is "length" where that ended it."""
        seen = find_plain_completion(subject)
        tokens = seen.output.completion_tokens or subject.max_new_tokens
        for limit in range(1, min(tokens, 5)):
            output = subject.complete(GenerationRequest(seen.prompt, max_new_tokens=limit))
            assert output.finish_reason in (None, "length"), (
                f"max_new_tokens={limit} ended it, but finish_reason is {output.finish_reason!r}"
            )
            assert output.completion_tokens in (None, limit), (
                f"max_new_tokens={limit}, but completion_tokens={output.completion_tokens}"
            )
            assert len(output.token_ids or ()) <= limit, f"more than {limit} token_ids"
            assert len(output.text) < len(seen.output.text), f"{limit} tokens give the whole text"

    @needs(Capability.TRUNCATION)
    @fills_the_window
    def test_a_long_prompt_is_cut_from_the_left(self, subject: Subject) -> None:
        """A prompt is cut from the left to leave room for `max_new_tokens`, and counted."""
        room = subject.window - subject.max_new_tokens
        token_ids = subject.prompt_ids(SENTENCE * (1 + subject.window // 8))
        text = SENTENCE * (1 + subject.window // 8)
        asked: dict[str, dict[str, Any]] = {
            "a prompt": {},
            "a rendered prompt": {"rendered_prompt": text},
            "ids": {"input_ids": token_ids},
            "messages": {"messages": [{"role": "user", "content": text}]},
        }
        declared = {"ids": Capability.TOKEN_IDS, "messages": Capability.CHAT}
        for kind, fields in asked.items():
            if kind not in declared or subject.declares(declared[kind]):
                strict = subject.request(text, truncation="error", **fields)
                assert_refused(
                    partial(subject.complete, strict),
                    ContextLengthError,
                    f"{kind} that doesn't fit, with truncation='error',",
                )
        cut, tail = subject.generate(
            subject.request(text), subject.request("", input_ids=token_ids[-room:])
        )
        assert cut.truncated_tokens == len(token_ids) - room, (
            f"{len(token_ids)} tokens with room for {room}: truncated_tokens must be "
            f"{len(token_ids) - room}, got {cut.truncated_tokens}"
        )
        assert tail.truncated_tokens == 0, "truncated_tokens counts where nothing was cut"
        request = subject.request(text)
        assert_same_text(subject, request, cut, tail, "what is left after the cut isn't the end")

    def test_a_limit_without_room_for_a_prompt_is_refused(self, subject: Subject) -> None:
        """`max_new_tokens` that leaves no room for a prompt is a `ContextLengthError`."""
        request = GenerationRequest(PROMPTS[0], max_new_tokens=subject.window)
        assert_refused(
            lambda: subject.complete(request), ContextLengthError, "a limit as long as the window"
        )

    def test_bad_requests_are_refused_by_index(self, subject: Subject) -> None:
        """A list call validates every request first; `failures` name the bad indices."""
        good: dict[str, Any] = {"prompt": PROMPTS[0], "max_new_tokens": 1}
        requests = [GenerationRequest(**good)]
        requests += [GenerationRequest(**{**good, **bad}) for bad in _BAD_FIELDS]
        requests.append(GenerationRequest(**good))
        error = assert_refused(
            lambda: subject.generate(*requests), InvalidRequestError, "a list with bad requests"
        )
        failed = set(error.failures)
        served = [_BAD_FIELDS[i - 1] for i in range(1, len(requests) - 1) if i not in failed]
        assert not served, f"these fields make a request invalid, but were accepted: {served}"
        assert failed <= set(range(1, len(requests) - 1)), f"good requests are named bad: {failed}"

    def test_requests_come_back_untouched(self, subject: Subject) -> None:
        """`metadata` is the caller's and comes back untouched; so does the request."""
        metadata = {"id": 7, "nested": {"list": [1, 2]}, "object": ("a", None)}
        requests = [subject.request(prompt, metadata=dict(metadata)) for prompt in PROMPTS[:2]]
        before = copy.deepcopy(requests)
        for output in subject.generate(*requests):
            assert output.metadata == metadata, f"metadata came back as {output.metadata}"
        assert requests == before, "generate() changed the caller's request"

    def test_completions_equal_the_reference(self, subject: Subject) -> None:
        """Same token ids in, same text out, up to the first undecided step."""
        for case in load_reference_values(subject).generation:
            _assert_equals_reference(subject, case)

    @needs(Capability.CHAT)
    def test_chat_equals_the_reference(self, subject: Subject) -> None:
        """Same messages in, same answer out, up to the first undecided step."""
        for case in require_cases(load_reference_values(subject).chat, "chats"):
            _assert_equals_reference(subject, case)


def _make_prompts_with_one_head(subject: Subject) -> list[GenerationRequest]:
    """Make prompts that begin alike, of which two have the same length and one is all in both."""
    room = (subject.session.info.max_model_len or _LONG_HEAD) // 3
    head = (SENTENCE * (1 + room // len(SENTENCE)))[: min(room, _LONG_HEAD)]
    tails = (" The dog is red and", "", " The cat is big and")
    logprobs = 2 if subject.declares(Capability.LOGPROBS) else None
    return [subject.request(head + tail, logprobs=logprobs) for tail in tails]


def _follow_up(
    subject: Subject, request: GenerationRequest, answer: GenerationOutput
) -> list[GenerationRequest]:
    """Make prompts that go on behind an answer: as it ended, and as a stop string cut it."""
    stop = answer.text[len(answer.text) // 2 :][:2] or "e"
    stopped = subject.complete(dataclasses.replace(request, stop=[stop]))
    takes_ids = subject.declares(Capability.TOKEN_IDS) and subject.session.tokenizer is not None
    made: list[GenerationRequest] = []
    for output in (answer, stopped):
        if takes_ids and output.token_ids is not None:
            before, after = subject.prompt_ids(request.prompt or ""), subject.codec.encode(" and")
            token_ids = [*before, *output.token_ids, *after]
            made.append(dataclasses.replace(request, input_ids=token_ids))
        else:
            prompt = f"{request.prompt}{output.text} and"
            made.append(dataclasses.replace(request, prompt=prompt))
    return made


def _assert_equals_reference(subject: Subject, case: Any) -> None:
    output = subject.complete(case.request())
    rule = f"the completion of {(case.prompt or case.messages)!r} isn't the reference's"
    allowed = subject.reference_tolerance
    assert_tokens_agree(
        subject, output, case.text, case.token_ids, case.top2_gaps, rule, tolerance=allowed
    )
    if output.text == case.text and case.finish_reason is not None:
        assert output.finish_reason == case.finish_reason, (
            f"{rule}: finish_reason {output.finish_reason!r}, expected {case.finish_reason!r}"
        )
    if case.prompt_ids is not None and output.prompt_tokens is not None:
        assert output.prompt_tokens == len(case.prompt_ids), (
            f"{rule}: {output.prompt_tokens} tokens were fed, expected {len(case.prompt_ids)}"
        )
