"""Faults in how a completion ends, and in its text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evalution_conformance.mutants.catalogue import session_fault
from evalution_conformance.mutants.toy import ToySession
from evalution_core import GenerationOutput, GenerationRequest


@session_fault("test_end_of_sequence_ends_the_text")
class ShowsEos(ToySession):
    """The EOS token is shown in the text."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        ended = output.finish_reason == "stop" and not request.stop
        return replace(output, text=output.text + "<eos>") if ended else output


@session_fault("test_end_of_sequence_ends_the_text")
class CountsNoEos(ToySession):
    """`completion_tokens` leaves out the EOS token, which was generated and paid for."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        return replace(output, completion_tokens=len(output.token_ids or ()))


@session_fault("test_ignore_eos_generates_on")
class HeedsEosAnyway(ToySession):
    """`ignore_eos` is ignored."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, ignore_eos=False)


@session_fault("test_a_stop_string_is_cut", "test_a_delta_is_never_taken_back")
class KeepsTheStop(ToySession):
    """The text ends with the stop string."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        if not request.stop or output.finish_reason != "stop":
            return output
        return replace(output, text=output.text + request.stop[0])

    def stream(self, requests: Any, *, batch_size: int | None = None) -> Any:
        plain = ((key, replace(request, stop=[])) for key, request in requests)
        return super().stream(plain, batch_size=batch_size)


class _StopsAfterwards(ToySession):
    """Generates on and cuts the text when it is finished."""

    def asked(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, stop=[])

    def cut(self, request: GenerationRequest, output: GenerationOutput) -> int:
        found = [at for stop in request.stop if (at := output.text.find(stop)) >= 0]
        return min(found, default=-1)

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
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
        pieces = [self.tokenizer.decode([token_id]) for token_id in output.token_ids or ()]
        if not any(stop in piece for stop in request.stop for piece in pieces):
            return -1
        return super().cut(request, output)


@session_fault("test_token_ids_end_with_the_stop")
class KeepsIdsOfTheStop(_StopsAfterwards):
    """The text is cut at the stop string, `token_ids` are not."""


@session_fault("test_text_is_verbatim")
class StripsText(ToySession):
    """Whitespace is stripped off the text."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        return replace(output, text=output.text.strip())


@session_fault("test_multi_byte_characters_are_whole")
class DecodesTokenByToken(ToySession):
    """Each token is decoded by itself, so characters of several tokens break."""

    def answered(self, request: GenerationRequest, output: GenerationOutput) -> GenerationOutput:
        pieces = [self.tokenizer.decode([token_id]) for token_id in output.token_ids or ()]
        return replace(output, text="".join(pieces))
