"""Any engine as a model of lm-eval.

Texts become ids by the rule of `evalution_core.encoding`, as in every engine.
"""

from __future__ import annotations

import hashlib
import json
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingTypeStubs]

from evalution.runs.preflight import check_model
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    TextCodec,
    UnsupportedRequestError,
)
from evalution_core.encoding import (
    ContextEncoder,
    conditioning_id,
    encode_pair,
    encode_with_leading,
)
from evalution_enginekit.chat import ChatTemplate
from evalution_lm_eval.arguments import read_arguments
from evalution_lm_eval.collection import Collection, OnFailure
from evalution_lm_eval.requests import (
    DEFAULT_MAX_GEN_TOKS,
    ChatPrompt,
    HasChatTemplate,
    make_completion_request,
    make_scoring_request,
    map_generation_settings,
    render_chat,
)
from evalution_lm_eval.upstream import Instance

_WORST = (float("-inf"), False)


class EvalutionLM(TemplateLM):
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
        super().__init__()
        self._cap = _read_cap(batch_size, max_batch_size)
        self._max_gen_toks = DEFAULT_MAX_GEN_TOKS
        self._on_failure: OnFailure = "raise"
        self._is_checked = False
        self._counts: Counter[str] = Counter()
        self._engine: BaseEngine | None = None
        self._name = "session"
        if session is not None and arguments:
            raise ConfigurationError(
                f"a live session takes no further arguments, got {', '.join(sorted(arguments))}"
            )
        if session is None:
            declared = read_arguments(arguments, device)
            self._max_gen_toks, self._on_failure = declared.max_gen_toks, declared.on_failure
            self._engine = declared.engine
            self._name = declared.model.tokenizer_path or declared.model.name
            check_model(declared.model, declared.engine)
            session = declared.engine.build(declared.model)
            # lm-eval never closes a model.
            weakref.finalize(self, session.close)
        self._session = session
        self._codec = session.tokenizer

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
        collection = self._open("loglikelihood", requests, disable_tqdm)
        return collection.collect(pairs, _read_score, _WORST)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        self._prepare(Capability.LOGLIKELIHOOD, [])
        pairs = (_make_pair_of_ids(*request) for request in requests)
        texts = [texts for texts, _, _ in requests]
        collection = self._open("loglikelihood", [], disable_tqdm, texts)
        return collection.collect(pairs, _read_score, _WORST)

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probabilities of whole texts in nats; the BOS token is conditioned on, not scored.

        Raises:
            FailedRequestError: a text has no score, for which there is no worst one.
            UnsupportedRequestError: the engine can't score texts.
        """
        self._prepare(Capability.ROLLING, requests)
        collection = self._open("loglikelihood_rolling", requests, disable_tqdm)
        texts = (RollingLoglikelihoodRequest(*request.args) for request in requests)
        return collection.collect(texts, lambda output: output.logprob)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Completions, each with its own stops, limit and sampling; without the stop.

        Raises:
            ConfigurationError: a generation setting that no engine can be asked; nothing was run.
            FailedRequestError: a request has no answer, unless `on_failure` is `worst`.
            UnsupportedRequestError: the engine doesn't generate.
        """
        self._prepare(Capability.GENERATE, requests)
        completions = [
            make_completion_request(context, map_generation_settings(given, self._max_gen_toks))
            for context, given in (request.args for request in requests)
        ]
        collection = self._open("generate_until", requests, disable_tqdm)
        return collection.collect(completions, lambda output: output.text, "")

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
                "failed_requests": self._counts["failed"],
                "truncated_requests": self._counts["truncated"],
            }
        }

    @property
    def max_length(self) -> int | None:
        """Tokens that the model can be fed; None if unknown."""
        return self._session.info.max_model_len

    @property
    def eot_token_id(self) -> int:
        if self._tokens.eos_id is None:
            raise InvalidRequestError("the tokenizer has no end-of-sequence token")
        return self._tokens.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The id that stands for an empty context: BOS, else EOS."""
        return conditioning_id(self._tokens)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the ids of a text, by default after the leading ids, which are never doubled."""
        if add_special_tokens is False:
            return self._tokens.encode(string)
        return encode_with_leading(self._tokens, string)

    def tok_decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._tokens.decode(tokens, skip_special_tokens=skip_special_tokens)

    @property
    def tokenizer_name(self) -> str:
        """File name for the tokenizer with its template, by which lm-eval caches prompts."""
        template = self._template
        source = "" if template is None else template.source
        if template is not None and template.variables:
            source += json.dumps(template.variables, sort_keys=True)
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '__', self._name)}-{digest}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the source of the model's template, "" where only the engine knows it.

        Raises:
            ConfigurationError: a template is asked for by name.
        """
        if isinstance(chat_template, str) and chat_template != "default":
            raise ConfigurationError(
                f"there is no chat template named {chat_template!r}: an engine uses the one of its "
                "tokenizer; leave the name out, or name another tokenizer in model_args"
            )
        if not chat_template:
            return None
        return "" if self._template is None else self._template.source

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt of a conversation; the engine renders if only it knows the template.

        Raises:
            InvalidRequestError: the template refuses the conversation.
            UnsupportedRequestError: there is no template, or an answer is begun and only the engine
                knows the template.
        """
        if self._template is not None:
            return render_chat(
                self._template, chat_history, add_generation_prompt=add_generation_prompt
            )
        self._require(Capability.CHAT, "apply_chat_template")
        if not add_generation_prompt:
            raise UnsupportedRequestError(
                "the task begins the answer (gen_prefix), which needs the chat template, and the "
                "session keeps it to itself or has none"
            )
        return ChatPrompt(chat_history)

    # within

    def _open(
        self,
        kind: str,
        requests: Sequence[Instance],
        disable_tqdm: bool,
        arguments: Sequence[tuple[Any, ...]] | None = None,
    ) -> Collection:
        calls: Mapping[str, Callable[..., Iterator[tuple[Any, Any]]]] = {
            "loglikelihood": self._session.loglikelihood_continuous,
            "loglikelihood_rolling": self._session.loglikelihood_rolling_continuous,
            "generate_until": self._session.generate_continuous,
        }
        return Collection(
            kind,
            calls[kind],
            [request.args for request in requests] if arguments is None else arguments,
            requests,
            self.cache_hook,
            self._on_failure,
            self._cap,
            not disable_tqdm,
            self._counts,
        )

    def _make_pair(
        self, contexts: ContextEncoder | None, context: str, continuation: str
    ) -> LoglikelihoodRequest:
        if isinstance(context, ChatPrompt) or not self._takes_ids:
            return make_scoring_request(context, continuation)
        try:
            ids = encode_pair(self._tokens, context, continuation, contexts=contexts)
        except InvalidRequestError:
            # The session refuses it by name, and the others go on.
            return make_scoring_request(context, continuation)
        return _make_pair_of_ids((context, continuation), *ids)

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

    def _require(self, capability: Capability, who: str) -> None:
        known = self._session.capabilities
        if capability not in known:
            raise UnsupportedRequestError(
                f"{who} needs {capability}; the capabilities of the engine are "
                f"{', '.join(sorted(known)) or 'none'}"
            )

    @property
    def _takes_ids(self) -> bool:
        return self._codec is not None and Capability.TOKEN_IDS in self._session.capabilities

    @property
    def _tokens(self) -> TextCodec:
        if self._codec is None:
            raise UnsupportedRequestError(
                "the session keeps its tokenizer to itself, so nothing can be encoded here"
            )
        return self._codec

    @property
    def _template(self) -> ChatTemplate | None:
        codec = self._codec
        return codec.chat_template if isinstance(codec, HasChatTemplate) else None


def _read_cap(batch_size: int | str | None, max_batch_size: int | None) -> int | None:
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


def _make_pair_of_ids(
    texts: tuple[str, str], context_ids: list[int], continuation_ids: list[int]
) -> LoglikelihoodRequest:
    return LoglikelihoodRequest(
        *texts, context_input_ids=context_ids, continuation_input_ids=continuation_ids
    )


def _read_score(output: LoglikelihoodOutput) -> tuple[float, bool]:
    if output.is_greedy is None:
        raise UnsupportedRequestError(
            "lm-eval needs is_greedy of each continuation (it is what greedy generation gives), "
            "which the engine doesn't report"
        )
    return output.logprob, output.is_greedy
