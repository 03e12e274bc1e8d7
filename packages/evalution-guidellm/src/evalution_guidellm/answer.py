"""One request's answer as it grows: its moments in GuideLLM's timings, its text, its usage."""

from __future__ import annotations

from dataclasses import dataclass, field

from guidellm.schemas import (
    GenerationRequest,
    GenerationRequestArguments,
    GenerationResponse,
    RequestTimings,
    UsageMetrics,
)

from evalution_core import GenerationOutput, TextDelta


@dataclass(slots=True)
class Answer:
    """Collects what a session says of one request.

    Args:
        request: GuideLLM's own.
        arguments: the body that was made of it, for the report.
        timings: get their stamps here.
        tells_tokens: whether pieces come as tokens are made; if not, the time of the first token
            is unknown and stays out.
    """

    request: GenerationRequest
    arguments: GenerationRequestArguments
    timings: RequestTimings
    tells_tokens: bool
    _pieces: list[str] = field(default_factory=list[str])
    _tokens: int = 0
    _output: GenerationOutput | None = None

    def take(self, event: TextDelta | GenerationOutput, now: float) -> bool:
        """Note an event that came at `now`, in Unix time; whether it is the first token."""
        if isinstance(event, GenerationOutput):
            self._output = event
            self.timings.request_end = now
            return False
        timings = self.timings
        if timings.first_request_iteration is None:
            timings.first_request_iteration = now
        timings.last_request_iteration = now
        timings.request_iterations += 1
        self._pieces.append(event.text)
        self._tokens += len(event.token_ids)
        if not self.tells_tokens or not (event.text or event.token_ids):
            return False
        is_first = timings.first_token_iteration is None
        if is_first:
            timings.first_token_iteration = now
            timings.first_output_token_iteration = now
        timings.last_token_iteration = now
        timings.token_iterations += 1
        return is_first

    def response(self) -> GenerationResponse:
        """The answer so far: of a request that was given up, its text and tokens until then."""
        output = self._output
        text = output.text if output else "".join(self._pieces)
        return GenerationResponse(
            request_id=self.request.request_id,
            request_args=self.arguments.model_dump_json(),
            text=text,
            input_metrics=UsageMetrics(text_tokens=output.prompt_tokens if output else None),
            output_metrics=UsageMetrics(
                text_tokens=output.completion_tokens if output else self._tokens,
                text_words=len(text.split()),
                text_characters=len(text),
            ),
        )
