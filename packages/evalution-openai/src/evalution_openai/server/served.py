"""The model that a server answers for: its session, what is known of it, and the lanes into it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from evalution_core import (
    GUIDE_CAPABILITIES,
    BaseInferenceSession,
    Capability,
    GenerationRequest,
    HasMaxModelLen,
    HasPreferredBatchSize,
    HasTokenizer,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    SpecialTokens,
    TextCodec,
)
from evalution_enginekit.validation import Admission
from evalution_openai.server.generation_lane import GenerationLane
from evalution_openai.server.held_bytes import HeldBytes
from evalution_openai.server.metrics import Metrics
from evalution_openai.server.problems import Problem, queue_full, unsupported
from evalution_openai.server.scoring_lane import ScoringLane, loglikelihoods, rolling
from evalution_openai.server.settings import ServerSettings

ID_SPELLING = "token_id:"
_BATCH_SIZE = 8
"""Of a session that prefers none."""


@runtime_checkable
class WholeTokenizer(SpecialTokens, Protocol):
    """What the engine kit's tokenizers know beyond the contract's."""

    @property
    def eos_ids(self) -> frozenset[int]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def chat_template(self) -> Any: ...


class Served:
    """A session under a name.

    Args:
        session: stays with whoever gave it; `close` ends the lanes alone.
        name: what `/v1/models` says.
        capabilities: what the engine declares, for a session that tells nothing of its own.
        settings: the limits.
        metrics: counts what happens.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        name: str,
        capabilities: frozenset[Capability] | None,
        settings: ServerSettings,
        metrics: Metrics,
    ):
        self.session = session
        self.name = name
        self.created = int(time.time())
        self.settings = settings
        self.metrics = metrics
        self.capabilities = session.capabilities or capabilities or GUIDE_CAPABILITIES
        self.admission = Admission(name, self.capabilities)
        self.tokenizer: TextCodec | None = (
            session.tokenizer if isinstance(session, HasTokenizer) else None
        )
        self.max_model_len = session.max_model_len if isinstance(session, HasMaxModelLen) else None
        preferred = (
            session.preferred_batch_size
            if isinstance(session, HasPreferredBatchSize)
            else _BATCH_SIZE
        )
        concurrent = settings.max_concurrent or 2 * preferred
        self.limit = concurrent + settings.max_queue
        self.inside = 0
        self.bodies = HeldBytes(settings.most_held_bytes)
        self.generation = GenerationLane(
            session,
            limit=concurrent,
            refills=Capability.CONTINUOUS_BATCHING in self.capabilities,
            streams=Capability.STREAM in self.capabilities,
            waited=metrics.waited("generation"),
        )
        self.loglikelihood: ScoringLane[LoglikelihoodRequest, LoglikelihoodOutput] = ScoringLane(
            loglikelihoods(session), metrics.waited("loglikelihood")
        )
        self.rolling: ScoringLane[RollingLoglikelihoodRequest, RollingLoglikelihoodOutput] = (
            ScoringLane(rolling(session), metrics.waited("rolling"))
        )
        self._spelled: dict[int, str] = {}

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    def enter(self) -> None:
        """Take a place among the requests that run or wait; `leave` gives it back.

        Raises:
            Problem: 429, none is free.
        """
        if self.inside >= self.limit:
            raise queue_full(self.limit)
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1

    def check_name(self, name: str | None) -> None:
        """Raise a `Problem` (404) for another model than the served one."""
        if name is not None and name != self.name:
            raise Problem(
                404,
                f"model {name!r} is not served here; this server has {self.name!r}",
                code="model_not_found",
                param="model",
            )

    def codec(self, wanted: str) -> TextCodec:
        """The tokenizer; a `Problem` says that `wanted` needs one."""
        if self.tokenizer is None:
            raise unsupported(
                f"{wanted} needs the model's tokenizer, which this engine doesn't give"
            )
        return self.tokenizer

    def prompt_ids(self, text: str) -> list[int] | None:
        """Ids of a prompt as the session encodes it; None where that can't be known."""
        if not isinstance(self.tokenizer, SpecialTokens):
            return None
        token_ids = self.tokenizer.encode(text)
        leading = list(self.tokenizer.leading_ids)
        return token_ids if token_ids[: len(leading)] == leading else leading + token_ids

    def spelling(self, token_id: int) -> str:
        """The text of one token, special ones included.

        `token_id:N` without a tokenizer, and for a token that is a part of a character: many of
        those would read alike.
        """
        found = self._spelled.get(token_id)
        if found is None:
            found = "\ufffd"
            if self.tokenizer is not None:
                found = self.tokenizer.decode([token_id], skip_special_tokens=False)
            if "\ufffd" in found:
                found = f"{ID_SPELLING}{token_id}"
            self._spelled[token_id] = found
        return found

    def admit(self, requests: Sequence[GenerationRequest]) -> None:
        """Raise an `EvalutionError` for a request that the session would refuse."""
        for request in requests:
            self.admission.generation(request)

    def close(self) -> None:
        """End the lanes; the session is left as it is."""
        for lane in (self.generation, self.loglikelihood, self.rolling):
            lane.close()
