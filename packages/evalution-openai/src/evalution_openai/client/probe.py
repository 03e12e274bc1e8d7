"""What a server says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, cast

import httpx

from evalution_core import (
    Capability,
    CheckResult,
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    Model,
    UnsupportedRequestError,
    scrub,
)
from evalution_enginekit import RequestLoop, Tokenizer, load_tokenizer, runtime_errors
from evalution_enginekit.tokenizer_files import named_tokenizer
from evalution_openai.client.connection import Endpoint, is_unreachable, open_endpoint
from evalution_openai.client.dialects import dialect_of
from evalution_openai.client.requests import BodyWriter, scoring_cost
from evalution_openai.client.responses import UseOfIds, mapping
from evalution_openai.client.scoring_methods import (
    Climb,
    EchoRung,
    EvalRung,
    Places,
    Post,
    Probe,
    PromptLogprobsRung,
    Rung,
    SGLangRung,
    StepwiseRung,
)
from evalution_openai.client.tokenizer import RemoteTokenizer

if TYPE_CHECKING:
    from evalution_openai.engine import OpenAICompatible


@dataclass(frozen=True, slots=True)
class Served:
    """What `/v1/models` told, of the model that is asked for where it lists that; all optional."""

    names: tuple[str, ...] = ()
    owner: str | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    capabilities: frozenset[str] = field(default_factory=frozenset[str])


async def find_served(endpoint: Endpoint, name: str | None) -> Served:
    """What the server lists; nothing where it has no list.

    Raises:
        EngineUnavailableError: no server answers.
        ConfigurationError: it doesn't accept the credentials.
    """
    try:
        answer = await endpoint.get(f"{endpoint.address.api}/models")
    except ConfigurationError:
        raise
    except EvalutionError as error:
        if is_unreachable(error):
            raise EngineUnavailableError(
                f"no server answers at {scrub(endpoint.address.api)}: {error}; start it, or set "
                "base_url"
            ) from error
        return Served()
    listed: Any = answer.get("data")
    models = [mapping(entry) for entry in cast("list[Any]", listed or [])]
    names = tuple(str(model["id"]) for model in models if "id" in model)
    if not models:
        return Served()
    chosen = next((model for model in models if model.get("id") == name), None)
    if chosen is None and name is not None and len(models) > 1:
        return Served(names, _text(models[0].get("owned_by")))  # nothing is known of that model
    chosen = chosen or models[0]
    can: Any = chosen.get("capabilities")
    return Served(
        names,
        _text(chosen.get("owned_by")),
        _count(chosen.get("max_model_len")),
        _text(chosen.get("dtype")),
        frozenset(str(c) for c in cast("list[Any]", can)) if isinstance(can, list) else frozenset(),
    )


async def tokenizer_facts(endpoint: Endpoint) -> Mapping[str, Any]:
    """What `/tokenizer_info` tells; nothing where there is no such route."""
    try:
        return await endpoint.get(f"{endpoint.address.root}/tokenizer_info", max_retries=1)
    except EngineRuntimeError:
        return {}


async def keeps_template(endpoint: Endpoint) -> bool:
    """Whether Evalution's server has said that its engine gives no chat template."""
    try:
        facts = await tokenizer_facts(endpoint)
    except UnsupportedRequestError:  # it gives no tokenizer at all
        return True
    return "chat_template" in facts and facts["chat_template"] is None


def served_model(options: OpenAICompatible) -> str | None:
    """The first model that the server lists; None where it lists none.

    Raises:
        EngineUnavailableError: no server answers.
    """
    loop = RequestLoop("the OpenAICompatible engine")
    endpoint = open_endpoint(options)
    try:
        names = loop.call(lambda: find_served(endpoint, options.model_name)).names
    finally:
        loop.close(endpoint.close)
    return names[0] if names else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


_PROBE_RETRIES = 1
_PROBE_TEXT = "The first of 3 apples"
_ALWAYS = frozenset(
    {Capability.GENERATE, Capability.STREAM, Capability.CONTINUOUS_BATCHING, Capability.SAMPLING}
)
_SCORES = frozenset({Capability.LOGLIKELIHOOD, Capability.ROLLING})
_NOT_CHECKED = CheckResult("not checkable", "the server can't score prompts")


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found out about a server, and how it will be asked.

    `encodes`: it gets ids. `renders`: messages are rendered here. `leaves_open`: where they aren't,
    it heeds `add_generation_prompt=False`.
    """

    api: Literal["auto", "completions", "chat"]
    encodes: bool
    renders: bool
    leaves_open: bool
    ids: UseOfIds
    rung: Rung | None
    check: CheckResult
    timings: bool
    described: dict[str, Any]


class Survey:
    """What was found out, and how the server will be asked; each step relies on those before it.

    Raises:
        EngineUnavailableError: no server answers.
        ConfigurationError: the credentials aren't accepted, no model is named and none listed, the
            tokenizer can't be loaded, or `max_model_len` is more than the server's.
    """

    def __init__(
        self, options: OpenAICompatible, model: Model, loop: RequestLoop, endpoint: Endpoint
    ):
        self._options = options
        self._loop = loop
        self._endpoint = endpoint
        asked_for = options.model_name or model.path
        self.served: Served = loop.call(lambda: find_served(endpoint, asked_for))
        self.model = asked_for or _listed(self.served, options)
        host = httpx.URL(options.base_url).host
        self.dialect = dialect_of(options.dialect, self.served.owner, host)
        if self.dialect.is_evalution and self.served.names and self.model not in self.served.names:
            raise ConfigurationError(
                f"the server at {scrub(options.base_url)} has no model {self.model!r}; "
                f"{_remedy(self.model, self.served.names)}"
            )
        self._variables = model.chat_template_kwargs
        self.writer = BodyWriter(self.model, self.dialect, options.extra_body, self._variables)
        self._local = _local_tokenizer(model)
        self.tokenizer: Tokenizer | None = self._local or self._remote_tokenizer()
        self._climb = self._climbed()
        self._takes_ids = options.api != "chat" and self._finds_ids_taken()
        self.encodes = self._takes_ids and not self._leaves_text()
        self.max_model_len = self._window()

    def findings(self) -> Findings:
        rung = self._rung(self._scoring, self._climb.name)
        reads = self.dialect.tells_ids and not self.dialect.is_evalution
        return Findings(
            api=self._options.api,
            encodes=self.encodes,
            renders=self.renders,
            leaves_open=self.dialect.tells_ids,
            ids=("read" if self._local else "left") if reads else "kept",
            rung=rung,
            check=self._climb.check,
            timings=self._options.timings,
            described=self._described(),
        )

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What a session has, at most what the engine declares."""
        found = set(_ALWAYS | self.dialect.native)
        if self.dialect.is_evalution:
            told = self.served.capabilities
            found |= {can for can in self._options.capabilities if can.value in told}
            found -= _SCORES
        found.add(Capability.CHAT)
        if not self.encodes and self._options.api == "completions":
            found.discard(Capability.CHAT)
        if self._takes_ids:
            found.add(Capability.TOKEN_IDS)
        if self.encodes and self.max_model_len is not None:
            found.add(Capability.TRUNCATION)
        if self.encodes and self._local is not None and self.dialect.tells_ids:
            found.add(Capability.LOGPROBS)
        if self._climb.name is not None:
            found |= _SCORES
        return frozenset(found & self._options.capabilities)

    @property
    def lacking(self) -> Mapping[Capability, str]:
        """Why it can't score, by what the server returned."""
        if self._climb.name is not None:
            return {}
        return dict.fromkeys(_SCORES, self._climb.reason)

    @property
    def renders(self) -> bool:
        """Whether messages are rendered here: by a local tokenizer, or a template that was told."""
        if self._options.api == "completions":
            return True
        known = self._local is not None or (
            self.tokenizer is not None and self.tokenizer.chat_template is not None
        )
        return self.encodes and known and self._options.api == "auto"

    def takes_no_variables(self) -> bool:
        """Whether the server, one of Evalution, would refuse every chat that has variables."""
        return self.dialect.is_evalution and self._loop.call(lambda: keeps_template(self._endpoint))

    def _described(self) -> dict[str, Any]:
        climb = self._climb
        return {
            "base_url": scrub(self._options.base_url),
            "model": self.model,
            "dialect": self.dialect.name,
            "sampling_defaults": self.dialect.sampling_defaults,
            "api": self._options.api,
            "tokenizer": "local" if self._local else "server" if self.tokenizer else None,
            "prompts": "token ids" if self.encodes else "text",
            "scoring": climb.name,
            "scoring_check": climb.check.detail,
            "scoring_refused": climb.refused or None,
        }

    # steps

    def _ask(self, url: str, body: Mapping[str, Any]) -> Any:
        return self._loop.call(lambda: self._probing(url, body))

    async def _probing(self, url: str, body: Mapping[str, Any]) -> Any:
        return await self._endpoint.post(url, body, max_retries=_PROBE_RETRIES)

    async def _scoring(self, url: str, body: Mapping[str, Any]) -> Any:
        return await self._endpoint.post(url, body, tokens=scoring_cost(body))

    def _remote_tokenizer(self) -> RemoteTokenizer | None:
        """The server's tokenizer; None where it has no routes of vLLM's kind."""
        root = self._endpoint.address.root
        if self.dialect.name == "openai":
            return None
        body = {"model": self.model, "prompt": "a", "add_special_tokens": False}
        try:
            with runtime_errors("asking for the tokenizer"):
                if not self._ask(f"{root}/tokenize", body).get("tokens"):
                    return None
                facts = self._loop.call(lambda: tokenizer_facts(self._endpoint))
                tokenizer = RemoteTokenizer(self._ask, root, self.model, facts, self._variables)
                tokenizer.decode(tokenizer.encode("a"))
        except ConfigurationError:
            raise
        except EvalutionError:
            return None
        return tokenizer

    def _climbed(self) -> Climb:
        wanted = self._options.scoring
        if wanted == "none":
            return Climb(None, _NOT_CHECKED, {"scoring": "switched off by scoring='none'"})
        if self._options.api == "chat":
            return Climb(None, _NOT_CHECKED, {"chat": "it gives no log-probabilities of a prompt"})
        if self.tokenizer is None:
            why = "the server has no /tokenize and no /detokenize, and tokenizer_path isn't set"
            return Climb(None, _NOT_CHECKED, {"token ids": why})
        rungs = self._rungs(self._probing)
        if wanted != "auto":
            rungs = [rung for rung in rungs if rung.name == wanted]
        probe = Probe(
            self._loop.call,
            self._places(self._probing),
            self.tokenizer,
            max_model_len=self.served.max_model_len,
            dtype=self.served.dtype,
            tells_ids=self.dialect.tells_ids,
        )
        return probe.climb(rungs)

    def _rungs(self, post: Post) -> Sequence[Rung]:
        """All ways that may be tried, the best first."""
        assert self.tokenizer is not None
        places, top = self._places(post), self._options.stepwise_top
        rungs: list[Rung] = [
            EvalRung(places),
            EchoRung(places),
            PromptLogprobsRung(places),
            SGLangRung(places),
        ]
        if top:
            tells = self.dialect.tells_ids
            rungs.append(StepwiseRung(places, self.tokenizer, top, tells_ids=tells))
        return rungs

    def _rung(self, post: Post, name: str | None) -> Rung | None:
        if name is None:
            return None
        return next(rung for rung in self._rungs(post) if rung.name == name)

    def _places(self, post: Post) -> Places:
        address = self._endpoint.address
        return Places(post, address.api, address.root, self.writer.written)

    def _finds_ids_taken(self) -> bool:
        """Whether completions take token ids; found with one short prompt."""
        if self.tokenizer is None or self.dialect.is_evalution:
            return self.dialect.is_evalution
        if self._climb.name is not None and self._climb.name != "sglang":
            return True
        prompt = self.tokenizer.encode(_PROBE_TEXT)
        body = self.writer.written({"prompt": prompt, "max_tokens": 1, "temperature": 0.0})
        try:
            answer = self._ask(f"{self._endpoint.address.api}/completions", body)
        except ConfigurationError:
            raise
        except EvalutionError:
            return False
        usage: Any = answer.get("usage") or {}
        return usage.get("prompt_tokens", len(prompt)) == len(prompt)

    def _leaves_text(self) -> bool:
        """Whether text goes as it is: Evalution's server follows the same rules as the kit."""
        own = self._options.max_model_len
        return self.tokenizer is None or (
            self.dialect.is_evalution
            and self._local is None
            and self._options.api != "completions"
            and not self._variables
            and self._climb.name in (None, "evalution")
            and own in (None, self.served.max_model_len)
        )

    def _window(self) -> int | None:
        """What is fed at most: the option, else what the server tells, less what scoring needs."""
        own, told = self._options.max_model_len, self.served.max_model_len
        if own is not None and told is not None and own > told:
            raise ConfigurationError(
                f"max_model_len={own} is more than the {told} tokens that the server takes"
            )
        if told is None or self._climb.name is None:
            return own if told is None else own or told
        needs = next(r.needs for r in self._rungs(self._probing) if r.name == self._climb.name)
        return min(own or told, told - needs)


def _remedy(model: str | None, listed: Sequence[str]) -> str:
    name = PurePath(model or "").name
    if name in listed and name != model:
        # A spec takes a folder beside it for the model of that name.
        return f"a folder called {name!r} was taken for it: set the option model_name to {name!r}"
    return f"set model.path or model_name to {listed[0]!r}, or leave both out"


def _listed(served: Served, options: OpenAICompatible) -> str:
    if not served.names:
        raise ConfigurationError(
            f"the server at {scrub(options.base_url)} lists no model; set model.path or model_name "
            "to the name that it knows"
        )
    return served.names[0]


def _local_tokenizer(model: Model) -> Tokenizer | None:
    if model.tokenizer is None and model.tokenizer_path is None:
        return None
    named = named_tokenizer(model)
    path = Path(named).expanduser() if named else Path()
    return load_tokenizer(model, path if path.is_dir() else path.parent)
