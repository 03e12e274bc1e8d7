"""Faults in what is fed, refused and given back, and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evalution_conformance.mutants.catalogue import session_fault
from evalution_conformance.mutants.toy import ToySession
from evalution_core import GenerationOutput, GenerationRequest, InvalidRequestError


@session_fault("test_a_batch_answers_as_its_requests_alone")
class SwapsOutputs(ToySession):
    """The first two outputs of a batch change places."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        outputs = super().generate(requests, batch_size=batch_size)
        return [*outputs[1::-1], *outputs[2:]]


@session_fault("test_a_batch_answers_as_its_requests_alone", "test_neighbours_change_nothing")
class LargestLimitForAll(ToySession):
    """`max_new_tokens` is the largest of the batch."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        limit = max((request.max_new_tokens for request in requests), default=1)
        return super().generate(
            [replace(request, max_new_tokens=limit) for request in requests], batch_size=batch_size
        )


@session_fault("test_neighbours_change_nothing")
class StopsOfTheLast(ToySession):
    """The stop strings of the last request hold for the whole batch."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        stops = [request.stop for request in requests if request.stop][-1:] or [[]]
        return super().generate(
            [replace(request, stop=stops[0]) for request in requests], batch_size=batch_size
        )


@session_fault("test_neighbours_change_nothing")
class TemperatureOfANeighbour(ToySession):
    """If one request of a batch is sampled, all are."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        sampled = [request for request in requests if request.do_sample]
        if sampled:
            hot = sampled[0].temperature
            requests = [replace(r, do_sample=True, temperature=hot) for r in requests]
        return super().generate(requests, batch_size=batch_size)


@session_fault("test_batch_size_changes_no_answer")
class SortsByLength(ToySession):
    """With a batch size, outputs come in the order in which they ran."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        if batch_size is not None:
            requests = sorted(requests, key=lambda request: len(request.prompt or ""))
        return super().generate(requests, batch_size=batch_size)


@session_fault("test_greedy_is_repeatable_at_any_temperature")
class HeatsGreedy(ToySession):
    """A temperature above 0 samples, `do_sample` or not."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, do_sample=request.do_sample or request.temperature > 0)


@session_fault("test_ids_are_completed_as_their_text")
class PrependsBosToIds(ToySession):
    """`input_ids` get a BOS put before them."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        if request.input_ids is None:
            return request
        return replace(request, input_ids=[*self.tokenizer.leading_ids, *request.input_ids])


@session_fault(
    "test_messages_are_completed_as_their_rendering",
    "test_rendered_chat_has_one_bos",
    "test_chat_equals_the_reference",
)
class DoublesBosInChat(ToySession):
    """Rendered chat gets a second BOS."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        rendered = self._rendered(request)
        if rendered is None:
            return request
        bos = list(self.tokenizer.leading_ids)
        return replace(request, input_ids=[*bos, *bos, *self.tokenizer.encode(rendered)])

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        rendered = self._rendered(request)
        return output if rendered is None else replace(output, prompt=rendered)

    def _rendered(self, request: GenerationRequest) -> str | None:
        template = self.tokenizer.chat_template
        if request.messages is None or template is None:
            return None
        return template.render(request.messages)


@session_fault("test_messages_without_a_template_are_refused")
class ImprovisesATemplate(ToySession):
    """Without a chat template, messages are joined somehow."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        if request.messages is None or self.tokenizer.chat_template is not None:
            return request
        lines = [f"{message['role']}: {message['content']}" for message in request.messages]
        return replace(request, rendered_prompt="\n".join(lines))


@session_fault("test_tools_are_rendered_or_refused")
class IgnoresTools(ToySession):
    """Tool definitions are dropped silently."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, tools=None)


@session_fault("test_parts_that_are_not_text_are_not_dropped")
class IgnoresImages(ToySession):
    """Message parts that aren't text are dropped silently."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        if request.messages is None:
            return request
        kept = [
            {**message, "content": _text_of(message["content"])} for message in request.messages
        ]
        return replace(request, messages=kept)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


@session_fault("test_beams_are_searched_or_refused")
class IgnoresBeams(ToySession):
    """`num_beams` is ignored where there is no beam search."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, num_beams=min(request.num_beams, 1))


@session_fault("test_max_new_tokens_is_kept")
class OneTokenMore(ToySession):
    """The token that fills the prompt's last position isn't counted."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        more = request.max_new_tokens + (request.max_new_tokens in range(1, 40))
        return replace(request, max_new_tokens=more)


@session_fault("test_max_new_tokens_is_kept")
class AlwaysSaysStop(ToySession):
    """`finish_reason` is "stop" whatever ended it."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        return replace(output, finish_reason="stop")


@session_fault("test_a_long_prompt_is_cut_from_the_left")
class CountsNoCut(ToySession):
    """What is cut from a prompt isn't counted."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        return replace(output, truncated_tokens=0)


@session_fault("test_a_long_prompt_is_cut_from_the_left")
class CutsFromTheRight(ToySession):
    """A prompt that doesn't fit loses its end, which is the question."""

    _cut = 0

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        room = self.max_model_len - request.max_new_tokens
        token_ids = [*self.tokenizer.leading_ids, *self.tokenizer.encode(request.prompt or "")]
        if request.input_ids is not None or room < 1 or len(token_ids) <= room:
            return request
        if request.truncation == "error":
            return request
        self._cut = len(token_ids) - room
        return replace(request, input_ids=token_ids[:room])

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        return output if request.input_ids else replace(output, truncated_tokens=self._cut)


@session_fault("test_a_limit_without_room_for_a_prompt_is_refused")
class ClampsTheLimit(ToySession):
    """`max_new_tokens` beyond the window is lowered silently."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, max_new_tokens=min(request.max_new_tokens, self.max_model_len - 8))


@session_fault("test_bad_requests_are_refused_by_index")
class NamesTheFirstAlone(ToySession):
    """A batch is refused for its first bad request; the others aren't named."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        try:
            return super().generate(requests, batch_size=batch_size)
        except InvalidRequestError as error:
            first = min(error.failures)
            error.failures = {first: error.failures[first]}
            raise


@session_fault("test_bad_requests_are_refused_by_index")
class RaisesTheLimitToOne(ToySession):
    """`max_new_tokens` below 1 is taken for 1."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, max_new_tokens=max(request.max_new_tokens, 1))


@session_fault("test_requests_come_back_untouched", "test_a_stream_completes_as_generate_does")
class WritesIntoMetadata(ToySession):
    """The engine leaves its notes in the caller's metadata."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        return replace(output, metadata={**output.metadata, "finish": output.finish_reason})


@session_fault("test_requests_come_back_untouched")
class RendersIntoTheRequest(ToySession):
    """The caller's request is filled with what was prepared from it."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        if request.input_ids is None and request.messages is None:
            request.rendered_prompt = request.prompt
        return request


@session_fault(
    "test_completions_equal_the_reference",
    "test_chat_equals_the_reference",
    "test_scores_equal_the_reference",
    "test_scores_of_ids_equal_the_reference",
    "test_cut_scores_equal_the_reference",
    "test_rolling_equals_the_reference",
    "test_windows_equal_the_reference",
)
class LoadsOtherWeights(ToySession):
    """All is consistent, but the weights are another model's."""

    salt = 1
