"""Faults in what is fed, refused and given back, and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evalution_core import (
    BaseInferenceSession,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    Model,
)
from mutants.catalogue import engine_fault, session_fault
from mutants.toy import Toy, ToySession


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

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, do_sample=request.do_sample or request.temperature > 0)


@session_fault("test_ids_are_completed_as_their_text")
class PrependsBosToIds(ToySession):
    """`input_ids` get a BOS put before them."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        if request.input_ids is None:
            return request
        return replace(request, input_ids=[*self.codec.leading_ids, *request.input_ids])


@session_fault(
    "test_messages_are_completed_as_their_rendering",
    "test_rendered_chat_has_one_bos",
    "test_chat_equals_the_reference",
)
class DoublesBosInChat(ToySession):
    """Rendered chat gets a second BOS."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        rendered = self._rendered(request)
        if rendered is None:
            return request
        bos = list(self.codec.leading_ids)
        return replace(request, input_ids=[*bos, *bos, *self.codec.encode(rendered)])

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        rendered = self._rendered(request)
        return output if rendered is None else replace(output, prompt=rendered)

    def _rendered(self, request: GenerationRequest) -> str | None:
        template = self.codec.chat_template
        if request.messages is None or template is None:
            return None
        return template.render(request.messages)


@session_fault("test_messages_without_a_template_are_refused")
class ImprovisesATemplate(ToySession):
    """Without a chat template, messages are joined somehow."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        if request.messages is None or self.codec.chat_template is not None:
            return request
        lines = [f"{message['role']}: {message['content']}" for message in request.messages]
        return replace(request, rendered_prompt="\n".join(lines))


@session_fault("test_tools_are_rendered_or_refused")
class IgnoresTools(ToySession):
    """Tool definitions are dropped silently."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, tools=None)


@session_fault("test_parts_that_are_not_text_are_not_dropped")
class IgnoresImages(ToySession):
    """Message parts that aren't text are dropped silently."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
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

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, num_beams=min(request.num_beams, 1))


@session_fault("test_max_new_tokens_is_kept")
class OneTokenMore(ToySession):
    """The token that fills the prompt's last position isn't counted."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        more = request.max_new_tokens + (request.max_new_tokens in range(1, 40))
        return replace(request, max_new_tokens=more)


@session_fault("test_max_new_tokens_is_kept")
class AlwaysSaysStop(ToySession):
    """`finish_reason` is "stop" whatever ended it."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        return replace(output, finish_reason="stop")


@session_fault("test_a_long_prompt_is_cut_from_the_left")
class CountsNoCut(ToySession):
    """What is cut from a prompt isn't counted."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        return replace(output, truncated_tokens=0)


@session_fault("test_a_long_prompt_is_cut_from_the_left")
class CutsFromTheRight(ToySession):
    """A prompt that doesn't fit loses its end, which is the question."""

    _cut = 0

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        room = self._window - request.max_new_tokens
        token_ids = [*self.codec.leading_ids, *self.codec.encode(request.prompt or "")]
        if request.input_ids is not None or room < 1 or len(token_ids) <= room:
            return request
        if request.truncation == "error":
            return request
        self._cut = len(token_ids) - room
        return replace(request, input_ids=token_ids[:room])

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        return output if request.input_ids else replace(output, truncated_tokens=self._cut)


@session_fault("test_a_limit_without_room_for_a_prompt_is_refused")
class ClampsTheLimit(ToySession):
    """`max_new_tokens` beyond the window is lowered silently."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, max_new_tokens=min(request.max_new_tokens, self._window - 8))


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

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, max_new_tokens=max(request.max_new_tokens, 1))


@session_fault("test_requests_come_back_untouched", "test_a_stream_completes_as_generate_does")
class WritesIntoMetadata(ToySession):
    """The engine leaves its notes in the caller's metadata."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        return replace(output, metadata={**output.metadata, "finish": output.finish_reason})


@session_fault("test_requests_come_back_untouched")
class RendersIntoTheRequest(ToySession):
    """The caller's request is filled with what was prepared from it."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
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


@session_fault("test_end_of_sequence_ends_the_text")
class ShowsEos(ToySession):
    """The EOS token is shown in the text."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        ended = output.finish_reason == "stop" and not request.stop
        return replace(output, text=output.text + "<eos>") if ended else output


@session_fault("test_end_of_sequence_ends_the_text")
class CountsNoEos(ToySession):
    """`completion_tokens` leaves out the EOS token, which was generated and paid for."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        return replace(output, completion_tokens=len(output.token_ids or ()))


@session_fault("test_ignore_eos_generates_on")
class HeedsEosAnyway(ToySession):
    """`ignore_eos` is ignored."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, ignore_eos=False)


@engine_fault("test_ignore_eos_generates_on")
class EndsAtADefault(Toy):
    """An answer ends after the 256 tokens that a runtime generates where nothing is asked."""

    def build(self, model: Model) -> BaseInferenceSession:
        return _Capped(replace(self, max_model_len=1024), model)


class _Capped(ToySession):
    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, max_new_tokens=min(request.max_new_tokens, 256))


@session_fault("test_a_stop_string_is_cut", "test_a_delta_is_never_taken_back")
class KeepsTheStop(ToySession):
    """The text ends with the stop string."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        if not request.stop or output.finish_reason != "stop":
            return output
        return replace(output, text=output.text + request.stop[0])

    def stream(self, requests: Any, *, batch_size: int | None = None) -> Any:
        plain = ((key, replace(request, stop=[])) for key, request in requests)
        return super().stream(plain, batch_size=batch_size)


class _StopsAfterwards(ToySession):
    """Generates on and cuts the text when it is finished."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, stop=[])

    def cut(self, request: GenerationRequest, output: GenerationOutput) -> int:
        found = [at for stop in request.stop if (at := output.text.find(stop)) >= 0]
        return min(found, default=-1)

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        cut = self.cut(request, output)
        if cut < 0:
            return output
        return replace(output, text=output.text[:cut], finish_reason="stop")


@session_fault("test_the_earliest_stop_counts")
class FirstListedStop(_StopsAfterwards):
    """The first stop string of the list that occurs is the one that counts."""

    def cut(self, request: GenerationRequest, output: GenerationOutput) -> int:
        found = [at for stop in request.stop if (at := output.text.find(stop)) >= 0]
        return found[0] if found else -1


@session_fault("test_a_stop_is_found_across_tokens")
class StopsWithinOneToken(_StopsAfterwards):
    """A stop string is looked for in each token by itself."""

    def cut(self, request: GenerationRequest, output: GenerationOutput) -> int:
        pieces = [self.codec.decode([token_id]) for token_id in output.token_ids or ()]
        if not any(stop in piece for stop in request.stop for piece in pieces):
            return -1
        return super().cut(request, output)


@session_fault("test_token_ids_end_with_the_stop")
class KeepsIdsOfTheStop(_StopsAfterwards):
    """The text is cut at the stop string, `token_ids` are not."""


@session_fault("test_text_is_verbatim")
class StripsText(ToySession):
    """Whitespace is stripped off the text."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        return replace(output, text=output.text.strip())


@session_fault("test_multi_byte_characters_are_whole")
class DecodesTokenByToken(ToySession):
    """Each token is decoded by itself, so characters of several tokens break."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        pieces = [self.codec.decode([token_id]) for token_id in output.token_ids or ()]
        return replace(output, text="".join(pieces))


@session_fault("test_sampling_samples")
class NeverSamples(ToySession):
    """`do_sample` is ignored."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, do_sample=False)


@session_fault("test_sampling_keeps_to_the_allowed_tokens")
class IgnoresTopK(ToySession):
    """`top_k` is ignored."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_k=0)


@session_fault("test_a_seed_fixes_the_sample")
class IgnoresTheSeed(ToySession):
    """`seed` is ignored."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, seed=None)


@session_fault("test_a_seed_fixes_the_sample")
class SeedsByPosition(ToySession):
    """What a seed gives depends on the place in the batch."""

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        moved = [
            request if request.seed is None else replace(request, seed=request.seed + 100 * index)
            for index, request in enumerate(requests)
        ]
        return super().generate(moved, batch_size=batch_size)


@session_fault("test_logprobs_belong_to_the_tokens")
class LogprobsOfTheNextToken(ToySession):
    """Log-probabilities stand one token too early, and the last one is missing."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        return replace(output, token_logprobs=(output.token_logprobs or [])[1:])


@session_fault("test_generated_tokens_score_the_same")
class LogprobsAfterTemperature(ToySession):
    """Log-probabilities of generated tokens are those of a scaled distribution."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        if output.token_logprobs is None:
            return output
        return replace(output, token_logprobs=[value / 2 for value in output.token_logprobs])


@session_fault("test_generated_tokens_score_the_same")
class LosesTrackInLongTexts(ToySession):
    """From the 33rd token on, log-probabilities are off."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        values = output.token_logprobs or []
        return replace(output, token_logprobs=[*values[:32], *(v - 0.01 for v in values[32:])])


@session_fault("test_logprobs_belong_to_the_tokens")
class ListsFiveAtMost(ToySession):
    """Of more likely tokens than five, five come."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, logprobs=request.logprobs and min(request.logprobs, 5))
