"""Faults in which fields of a request count, and in log-probabilities of what is generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evalution_core import GenerationOutput, GenerationRequest, InvalidRequestError
from mutants.catalogue import session_fault
from mutants.toy import ToySession


class _ChangesLogprobs(ToySession):
    """Changes the log-probabilities of generated tokens."""

    def change_values(self, request: GenerationRequest, values: list[float]) -> list[float]:
        return values

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        if not output.token_logprobs:
            return output
        return replace(output, token_logprobs=self.change_values(request, output.token_logprobs))


@session_fault("test_generated_tokens_score_the_same")
class LogprobsOfSamplesAfterTemperature(_ChangesLogprobs):
    """Log-probabilities of sampled tokens are those of the scaled distribution."""

    def change_values(self, request: GenerationRequest, values: list[float]) -> list[float]:
        return [value / request.temperature for value in values] if request.do_sample else values


@session_fault("test_generated_tokens_score_the_same")
class LogprobsOfTheStopToo(_ChangesLogprobs):
    """Log-probabilities go on to the token that completed the stop string."""

    def change_values(self, request: GenerationRequest, values: list[float]) -> list[float]:
        return [*values, -1.0] if request.stop else values


@session_fault("test_generated_tokens_score_the_same")
class LogprobsEndInNaN(_ChangesLogprobs):
    """The log-probability of the last token isn't a number."""

    def change_values(self, request: GenerationRequest, values: list[float]) -> list[float]:
        return [*values[:-1], float("nan")]


def _change_requests(
    name: str, fault: str, check: str, change: Callable[[GenerationRequest], GenerationRequest]
) -> None:
    """Add a session that takes generation requests for others."""

    def change_request(self: ToySession, request: GenerationRequest) -> GenerationRequest:
        return change(request)

    body = {"__doc__": fault, "change_request": change_request}
    session_fault(check)(type(name, (ToySession,), body))


def _refuse_empty(request: GenerationRequest) -> GenerationRequest:
    if request == replace(request, prompt="", messages=None, rendered_prompt=None, input_ids=None):
        raise InvalidRequestError("the prompt is empty")
    return request


_change_requests(
    "TakesThePromptBeforeIds",
    "`input_ids` count only where there is no prompt.",
    "test_ids_are_completed_as_their_text",
    lambda r: replace(r, input_ids=None if r.prompt else r.input_ids),
)
_change_requests(
    "TakesMessagesBeforeRenderedPrompts",
    "A rendered prompt counts only where there are no messages.",
    "test_messages_are_completed_as_their_rendering",
    lambda r: replace(r, rendered_prompt=None if r.messages else r.rendered_prompt),
)
_change_requests(
    "TakesThePromptBeforeMessages",
    "Messages count only where there is no prompt.",
    "test_messages_are_completed_as_their_rendering",
    lambda r: replace(r, messages=None if r.prompt else r.messages),
)
_change_requests(
    "TakesPromptsForRendered",
    "A rendered prompt is ignored, in lists and in streams.",
    "test_a_stream_completes_as_generate_does",
    lambda r: replace(r, rendered_prompt=None),
)
_change_requests(
    "StopsAtNothing",
    "Stop strings are ignored, in lists and in streams.",
    "test_a_stream_completes_as_generate_does",
    lambda r: replace(r, stop=[]),
)
_change_requests(
    "RefusesEmptyPrompts",
    "An empty prompt is refused.",
    "test_ids_are_completed_as_their_text",
    _refuse_empty,
)
_change_requests(
    "StopsAtNoSpecialToken",
    "Stop strings are matched on text without special tokens.",
    "test_ignore_eos_generates_on",
    lambda r: replace(r, stop=[stop for stop in r.stop if stop != "<eos>"]),
)
_change_requests(
    "CutsAllButPrompts",
    "`truncation` of anything but a plain prompt is ignored.",
    "test_a_long_prompt_is_cut_from_the_left",
    lambda r: replace(r, truncation="left") if r.input_ids or r.messages else r,
)
_change_requests(
    "AlwaysAddsAGenerationPrompt",
    "`add_generation_prompt` is ignored.",
    "test_chat_is_rendered_as_by_the_reference",
    lambda r: replace(r, add_generation_prompt=True),
)


@session_fault("test_token_ids_end_with_the_stop")
class CountsNoStop(ToySession):
    """`completion_tokens` leaves out the tokens of the stop string."""

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        ids = output.token_ids or ()
        return replace(output, completion_tokens=len(ids)) if request.stop else output
