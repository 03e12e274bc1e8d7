"""Any engine as a model of lm-eval."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from evalution.runs.preflight import check_model
from evalution_core import (
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    GenerationOutput,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_core.encoding import ContextEncoder, encode_pair
from evalution_lm_eval.arguments import read_arguments
from evalution_lm_eval.collection import Answering, Collection, OnFailure
from evalution_lm_eval.prompting import PromptingLM
from evalution_lm_eval.requests import (
    DEFAULT_MAX_GEN_TOKS,
    ChatPrompt,
    completion_request,
    generation_fields,
    scoring_request,
)
from evalution_lm_eval.upstream import Instance

_WORST = (float("-inf"), False)


class EvalutionLM(PromptingLM):
    """A session behind lm-eval's three calls; it plans and batches by itself.

    `EvalutionLM(engine="Transformers", pretrained="builtin:tiny", dtype="float32")` builds the
    session, which ends with this object; a `session` that is given stays the caller's.

    Args:
        session: a live session, in place of `engine` and all else that `read_arguments` reads.
        batch_size: requests in flight at most; `auto` and 1, which lm-eval passes where nothing was
            named, leave it to the session.
        max_batch_size: the same, where `batch_size` doesn't say.
        device: the engine's option of that name; `cuda:0`, which lm-eval's command passes where
            nothing was named, leaves it to the engine.
        arguments: `engine`, its options, the model (`pretrained`, `revision`, …), `max_gen_toks`,
            and `on_failure`: `raise` at the first request that fails, or count it as the `worst`
            answer: a probability of zero that isn't greedy, or an empty text.

    Raises:
        ConfigurationError: an argument is unknown or wrong, or the model isn't there.
        EngineUnavailableError: the engine's runtime is missing.
    """

    def __init__(
        self,
        *,
        session: BaseInferenceSession | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **arguments: Any,
    ) -> None:
        self._cap = _cap(batch_size, max_batch_size)
        self._max_gen_toks = DEFAULT_MAX_GEN_TOKS
        self._on_failure: OnFailure = "raise"
        self._is_checked = False
        self._failed = 0
        self._truncated = 0
        if session is not None and arguments:
            raise ConfigurationError(
                f"a live session takes no further arguments, got {', '.join(sorted(arguments))}"
            )
        if session is not None:
            super().__init__(session, None, "session")
            return
        declared = read_arguments(arguments, device)
        self._max_gen_toks, self._on_failure = declared.max_gen_toks, declared.on_failure
        check_model(declared.model, declared.engine)
        built = declared.engine.build(declared.model)
        # lm-eval never closes a model.
        weakref.finalize(self, built.close)
        name = declared.model.tokenizer_path or declared.model.name
        super().__init__(built, declared.engine, name)

    # what lm-eval asks

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Scores as `(log-probability in nats, is_greedy)`, in the order of `requests`.

        Raises:
            FailedRequestError: a request has no answer, unless `on_failure` is `worst`.
            UnsupportedRequestError: the engine doesn't score.
        """
        self._prepare(Capability.LOGLIKELIHOOD, requests)
        contexts = ContextEncoder(self._tokens) if self._takes_ids else None
        pairs = (self._make_pair(contexts, *request.args) for request in requests)
        return self._scored(self._collection("loglikelihood", requests, disable_tqdm), pairs)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        self._prepare(Capability.LOGLIKELIHOOD, [])
        collection = self._collection("loglikelihood", [], disable_tqdm)
        collection.arguments = [texts for texts, _, _ in requests]
        return self._scored(collection, (_by_ids(*request) for request in requests))

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probabilities of whole texts in nats; the BOS token is conditioned on, not scored.

        Raises:
            FailedRequestError: a text has no score, for which there is no worst one.
            UnsupportedRequestError: the engine can't score texts.
        """
        self._prepare(Capability.ROLLING, requests)

        collection = self._collection("loglikelihood_rolling", requests, disable_tqdm)
        texts = (RollingLoglikelihoodRequest(*request.args) for request in requests)
        return collection.collect(
            Answering(self._session.loglikelihood_rolling_continuous, _logprob), texts
        )

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Completions, each with its own stops, limit and sampling; without the stop.

        Raises:
            ConfigurationError: a generation setting that no engine can be asked; nothing was run.
            FailedRequestError: a request has no answer, unless `on_failure` is `worst`.
            UnsupportedRequestError: the engine doesn't generate.
        """
        self._prepare(Capability.GENERATE, requests)
        fields = [generation_fields(request.args[1], self._max_gen_toks) for request in requests]
        collection = self._collection("generate_until", requests, disable_tqdm)
        asked = (
            completion_request(request.args[0], given)
            for request, given in zip(requests, fields, strict=True)
        )
        texts = collection.collect(Answering(self._session.generate_continuous, _text, ""), asked)
        self._count(collection)
        return texts

    # what it says of itself

    @property
    def max_gen_toks(self) -> int:
        """The limit for tasks that name none."""
        return self._max_gen_toks

    def get_model_info(self) -> dict[str, Any]:
        """Return facts for lm-eval's results: engine with its options, identity, execution.

        `failed_requests` counted as the worst answer; `truncated_requests` had a prompt or context
        that was cut to fit the model.
        """
        engine = self._engine
        named = None if engine is None else {"name": type(engine).__name__, **engine.to_dict()}
        return {
            "evalution": {
                "engine": named,
                "identity": self._session.identity(),
                "execution": self._session.describe_execution(),
                "failed_requests": self._failed,
                "truncated_requests": self._truncated,
            }
        }

    # within

    def _collection(
        self, kind: str, requests: Sequence[Instance], disable_tqdm: bool
    ) -> Collection:
        return Collection(
            kind,
            [request.args for request in requests],
            requests,
            self.cache_hook,
            self._on_failure,
            self._cap,
            show_progress=not disable_tqdm,
        )

    def _scored(
        self, collection: Collection, requests: Iterable[LoglikelihoodRequest]
    ) -> list[tuple[float, bool]]:
        stream = self._session.loglikelihood_continuous
        scores = collection.collect(Answering(stream, _score, _WORST), requests)
        self._count(collection)
        return scores

    def _count(self, collection: Collection) -> None:
        self._failed += collection.failed
        self._truncated += collection.truncated

    def _make_pair(
        self, contexts: ContextEncoder | None, context: str, continuation: str
    ) -> LoglikelihoodRequest:
        if isinstance(context, ChatPrompt) or not self._takes_ids:
            return scoring_request(context, continuation)
        ids = encode_pair(self._tokens, context, continuation, contexts=contexts)
        return _by_ids((context, continuation), *ids)

    def _prepare(self, capability: Capability, requests: Sequence[Instance]) -> None:
        tasks = dict.fromkeys(request.task_name for request in requests if request.task_name)
        self._require(capability, f"lm-eval's task {', '.join(tasks)}" if tasks else "lm-eval")
        if capability is Capability.GENERATE or self._is_checked:
            return
        check = self._session.check()
        if check.outcome == "failed":
            raise EngineRuntimeError(
                f"the session failed its self check, so its scores would be wrong: {check.detail}"
            )
        self._is_checked = True


def _cap(batch_size: int | str | None, max_batch_size: int | None) -> int | None:
    """Requests in flight at most, from the two sizes that lm-eval passes."""
    try:
        named = 1 if batch_size is None or str(batch_size).startswith("auto") else int(batch_size)
        most = 1 if max_batch_size is None else int(max_batch_size)
    except (ValueError, TypeError):
        named = most = 0
    if named < 1 or most < 1:
        raise ConfigurationError(
            f"batch_size must be 'auto' or an int of at least 1, got {batch_size!r}"
            f" (max_batch_size {max_batch_size!r})"
        )
    return named if named > 1 else None if max_batch_size is None else most


def _by_ids(
    texts: tuple[str, str], context_ids: list[int], continuation_ids: list[int]
) -> LoglikelihoodRequest:
    return LoglikelihoodRequest(
        *texts, context_input_ids=context_ids, continuation_input_ids=continuation_ids
    )


def _score(output: LoglikelihoodOutput) -> tuple[float, bool]:
    if output.is_greedy is None:
        raise UnsupportedRequestError(
            "lm-eval needs is_greedy of each continuation (it is what greedy generation gives), "
            "which the engine doesn't report"
        )
    return output.logprob, output.is_greedy


def _logprob(output: RollingLoglikelihoodOutput) -> float:
    return output.logprob


def _text(output: GenerationOutput) -> str:
    return output.text
