"""A probe of a server: its models, dialect, tokenizer, window and scoring, found step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from evalution_core import (
    Capability,
    CheckResult,
    ConfigurationError,
    EngineRuntimeError,
    EvalutionError,
    InvalidRequestError,
    Model,
    UnsupportedRequestError,
)
from evalution_core.redaction import redact_text
from evalution_enginekit import RequestLoop, Tokenizer, load_tokenizer, runtime_errors
from evalution_openai.client.connection import ServerConnection
from evalution_openai.client.dialects import BodyWriter, find_dialect
from evalution_openai.client.listing import (
    PROBE_RETRIES,
    ModelListing,
    choose_model,
    fetch_listing,
)
from evalution_openai.client.responses import UseOfIds, to_mapping
from evalution_openai.client.scoring_methods import (
    PROBE_TEXT,
    SCORING_SERVERS,
    EchoScoring,
    EvalRouteScoring,
    PromptLogprobsScoring,
    ScoringChoice,
    ScoringMethod,
    ScoringProbe,
    ServerRoutes,
    SGLangScoring,
    StepwiseScoring,
)
from evalution_openai.client.tokenizer import RemoteTemplate, RemoteTokenizer
from evalution_openai.options import CAPABILITIES, OpenAIOptions


async def fetch_tokenizer_info(connection: ServerConnection) -> Mapping[str, Any]:
    """Fetch `/tokenizer_info`; empty where there is no such route, or it isn't for this client."""
    try:
        return await connection.get(f"{connection.address.root}/tokenizer_info", max_retries=1)
    except (EngineRuntimeError, InvalidRequestError):
        return {}


_ALWAYS = frozenset(
    {Capability.GENERATE, Capability.STREAM, Capability.CONTINUOUS_BATCHING, Capability.SAMPLING}
)
_TOP = Capability.PROMPT_TOP_LOGPROBS
_SCORES = frozenset({Capability.LOGLIKELIHOOD, Capability.ROLLING, _TOP})
_NOT_CHECKED = CheckResult("not checkable", "the server can't score prompts")


class ServerProbe:
    """Probes a server for one model; each step uses the results of those before it.

    Attributes:
        model: the model's name on the server.
        writer: writes the bodies of requests.
        tokenizer: the local one, or the server's; None: text is sent.
        choice: the scoring method that passed, and the result of checking it.
        encodes: prompts are sent as token ids.
        max_model_len: the most tokens that a prompt may have; None: unknown.

    Raises:
        EngineUnavailableError: no server answers, or none with OpenAI's routes.
        ConfigurationError: the credentials aren't accepted, the model isn't listed, or none is
            named and none listed, the tokenizer can't be loaded, or `max_model_len` is more than
            the server's.
    """

    def __init__(
        self,
        options: OpenAIOptions,
        model: Model,
        loop: RequestLoop,
        connection: ServerConnection,
    ):
        self._options = options
        self._loop = loop
        self._connection = connection
        wanted = options.model_name or model.path
        self.listing: ModelListing = loop.call(lambda: fetch_listing(connection, wanted))
        self.model = choose_model(self.listing, wanted, options)
        host = httpx.URL(options.base_url).host
        self.dialect = find_dialect(options.dialect, self.listing.owner, host)
        self._variables = model.chat_template_kwargs
        self.writer = BodyWriter(self.model, self.dialect, options.extra_body, self._variables)
        self.routes = ServerRoutes(connection, self.writer, PROBE_RETRIES)
        self._local = _load_tokenizer(model)
        self.tokenizer: Tokenizer | None = self._local or self._remote_tokenizer()
        self.choice = self._choose_scoring()
        self._takes_ids = options.api != "chat" and self._probe_ids()
        self.encodes = self._takes_ids and not self._sends_text()
        self.max_model_len = self._find_window()
        self.routes.max_retries = None  # from here on as many as the options allow

    def choose_use_of_ids(self, route: str) -> UseOfIds:
        """Return the use that is made of token ids in the answers of a route.

        vLLM's ids of a chat include the reasoning, and the first event of its stream has none.
        """
        if not self.dialect.returns_ids or self.dialect.is_evalution:
            return "kept"
        return "read" if self._local and route == "/completions" else "left"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return the capabilities of a session, at most those that the engine declares."""
        found = set(_ALWAYS | self.dialect.native)
        if self.dialect.is_evalution:
            declared = self.listing.capabilities
            found |= {can for can in CAPABILITIES if can.value in declared}
            found -= {*_SCORES, Capability.CHAT, Capability.TOOLS}
        if self.encodes or self._options.api != "completions":
            found.add(Capability.CHAT)
            template = None if self.tokenizer is None else self.tokenizer.chat_template
            if self.renders and template is not None and not isinstance(template, RemoteTemplate):
                found.add(Capability.TOOLS)
        if self._takes_ids:
            found.add(Capability.TOKEN_IDS)
        if self.encodes and self.max_model_len is not None:
            found.add(Capability.TRUNCATION)
        if self.encodes and self._local is not None and self.dialect.returns_ids:
            found.add(Capability.LOGPROBS)
        if self.choice.name is not None:
            found |= _SCORES
        if self.choice.top_problem is not None:
            found.discard(_TOP)
        return frozenset(found & CAPABILITIES)

    @property
    def lacking(self) -> Mapping[Capability, str]:
        """Return the reason for not scoring, or without the likeliest tokens, by capability."""
        if (why := self.choice.top_problem) is not None:
            return {_TOP: f"the server doesn't list them ({self.choice.name}: {why})"}
        if self.choice.name is not None:
            return {}
        return dict.fromkeys(_SCORES, self.choice.reason)

    @property
    def renders(self) -> bool:
        """Return whether messages are rendered here, by a tokenizer or a known template."""
        if self._options.api == "completions":
            return True
        known = self._local is not None or (
            self.tokenizer is not None and self.tokenizer.chat_template is not None
        )
        return self.encodes and known and self._options.api == "auto"

    def refuses_variables(self) -> bool:
        """Return whether this is Evalution's server, and refuses every chat with variables."""
        if not self.dialect.is_evalution:
            return False
        try:
            facts = self._loop.call(lambda: fetch_tokenizer_info(self._connection))
        except UnsupportedRequestError:  # its engine gives no tokenizer
            return True
        return "chat_template" in facts and facts["chat_template"] is None

    def describe(self) -> dict[str, Any]:
        choice = self.choice
        return {
            "base_url": redact_text(self._options.base_url),
            "model": self.model,
            "dialect": self.dialect.name,
            "sampling_defaults": self.dialect.sampling_defaults,
            "api": self._options.api,
            "tokenizer": "local" if self._local else "server" if self.tokenizer else None,
            "prompts": "token ids" if self.encodes else "text",
            "scoring": choice.name,
            "scoring_check": choice.check.detail,
            "scoring_refused": choice.refused or None,
        }

    def _post(self, url: str, body: Mapping[str, Any]) -> Any:
        retries = self.routes.max_retries
        return self._loop.call(lambda: self._connection.post(url, body, max_retries=retries))

    def _remote_tokenizer(self) -> RemoteTokenizer | None:
        """Make the server's tokenizer; None if it lacks vLLM's routes, or refuses them."""
        root = self._connection.address.root
        if self.dialect.name == "openai":
            return None
        body = {"model": self.model, "prompt": "a", "add_special_tokens": False}
        try:
            with runtime_errors("asking for the tokenizer"):
                if not self._post(f"{root}/tokenize", body).get("tokens"):
                    return None
                facts = self._loop.call(lambda: fetch_tokenizer_info(self._connection))
                tokenizer = RemoteTokenizer(self._post, root, self.model, facts, self._variables)
                tokenizer.decode(tokenizer.encode("a"))
        except ConfigurationError:
            raise
        except EvalutionError:
            return None
        return tokenizer

    def _choose_scoring(self) -> ScoringChoice:
        wanted = self._options.scoring
        if wanted == "none":
            return ScoringChoice(
                None, _NOT_CHECKED, {"scoring": "it is switched off by scoring='none'"}
            )
        if self._options.api == "chat":
            return ScoringChoice(
                None, _NOT_CHECKED, {"chat": "api='chat' has no log-probabilities of a prompt"}
            )
        if self.tokenizer is None:
            why = (
                f"OpenAI's API returns no log-probabilities of a prompt; {SCORING_SERVERS} do"
                if self.dialect.name == "openai"
                else "the server gives no /tokenize and /detokenize; set tokenizer_path to the "
                f"model's tokenizer, if the server is one that scores ({SCORING_SERVERS} are)"
            )
            return ScoringChoice(None, _NOT_CHECKED, {"token ids": why})
        routes = self.routes
        probe = ScoringProbe(
            self._loop.call,
            routes,
            self.tokenizer,
            max_model_len=self.listing.max_model_len,
            dtype=self.listing.dtype,
            returns_ids=self.dialect.returns_ids,
        )
        methods: list[ScoringMethod] = [
            EvalRouteScoring(routes),
            EchoScoring(routes),
            PromptLogprobsScoring(routes),
            SGLangScoring(routes),
        ]
        if top := self._options.stepwise_top:
            has_ids = self.dialect.returns_ids
            methods.append(StepwiseScoring(routes, self.tokenizer, top, returns_ids=has_ids))
        return probe.choose_method([m for m in methods if wanted in ("auto", m.name)])

    def _probe_ids(self) -> bool:
        """Return whether completions take token ids, tried on one short prompt."""
        if self.tokenizer is None or self.dialect.is_evalution:
            return self.dialect.is_evalution
        if self.choice.name is not None and self.choice.name != "sglang":
            return True
        prompt = self.tokenizer.encode(PROBE_TEXT)
        body = self.writer.complete_body({"prompt": prompt, "max_tokens": 1, "temperature": 0.0})
        try:
            answer = self._post(f"{self._connection.address.api}/completions", body)
        except ConfigurationError:
            raise
        except EvalutionError:
            return False
        return to_mapping(answer.get("usage")).get("prompt_tokens", len(prompt)) == len(prompt)

    def _sends_text(self) -> bool:
        """Return whether text is sent as it is; Evalution's server encodes by the kit's rules."""
        own = self._options.max_model_len
        return self.tokenizer is None or (
            self.dialect.is_evalution
            and self._local is None
            and self._options.api != "completions"
            and not self._variables
            and self.choice.name in (None, "evalution")
            and own in (None, self.listing.max_model_len)
        )

    def _find_window(self) -> int | None:
        """Return the most tokens fed: the option, or the server's limit less room for scoring."""
        own, limit = self._options.max_model_len, self.listing.max_model_len
        if own is not None and limit is not None and own > limit:
            raise ConfigurationError(
                f"max_model_len={own} is more than the {limit} tokens that the server takes"
            )
        method = self.choice.method
        if limit is None or method is None:
            return own or limit
        return min(own or limit, limit - method.needs)


def _load_tokenizer(model: Model) -> Tokenizer | None:
    if model.tokenizer is None and model.tokenizer_path is None:
        return None
    return load_tokenizer(model, None)
