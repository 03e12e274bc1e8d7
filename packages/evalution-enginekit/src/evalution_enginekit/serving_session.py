"""The session over a serving runtime, and the loading of the checkpoint that it serves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

from evalution_core import (
    Capability,
    ConfigurationError,
    EngineUnavailableError,
    EvalutionError,
    Model,
)
from evalution_core.encoding import TokenSpan
from evalution_core.redaction import redact_text
from evalution_enginekit.distributions import Rows
from evalution_enginekit.generation import PromptQueue, TokenEvent
from evalution_enginekit.model_source import (
    checkpoint_identity,
    find_checkpoint_dtype,
    model_folder,
)
from evalution_enginekit.runtime import ServingOptions, shorten_error
from evalution_enginekit.runtime_thread import runtime_errors
from evalution_enginekit.scoring import SpanScores
from evalution_enginekit.serving import ServingLoop, ServingRuntime, SpanGroup
from evalution_enginekit.serving_rows import generate_rows
from evalution_enginekit.session import TokenSession
from evalution_enginekit.tokenizer import HFTokenizer, Tokenizer, load_tokenizer

_log = logging.getLogger(__name__)

SCORED_TOKENS = 16384
"""Tokens that are scored at once, unless an option says otherwise."""
_SCORING_WINDOW = 512
"""Spans planned together; the longer, the seldomer the runtime runs dry between two windows."""
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.gguf")
_NO_MEMORY = "out of memory"
_NO_DEVICE = ("no cuda gpu", "nvidia driver", "no cuda-capable device")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LoadingHints:
    """The words that turn a failed start of a runtime into an error with a remedy.

    Args:
        runtime: its name, for people.
        memory_options: the options to set where memory doesn't suffice, as in `a, b or c`.
        device: the device that it can't do without, and what to use where there is none.
        process_errors: errors which mean that a process of the runtime didn't start.
    """

    runtime: str
    memory_options: str
    device: str | None = None
    process_errors: tuple[type[Exception], ...] = ()


@contextmanager
def loading_errors(path: str, hints: LoadingHints) -> Generator[None]:
    """Turn any error of a runtime that loads the model `path` into one that names a remedy.

    Raises:
        EngineUnavailableError: memory, a device, a library or a process of the runtime is missing.
        ConfigurationError: for any other error, which is taken for one in model or options.
    """
    try:
        yield
    except EvalutionError:
        raise
    except ImportError as error:
        raise EngineUnavailableError(
            f"loading {path!r} needs more: {redact_text(str(error))}"
        ) from error
    except Exception as error:
        # An error of a worker comes from another process, and only its text is left.
        text, message = str(error).lower(), shorten_error(error)
        if _NO_MEMORY in text:
            raise EngineUnavailableError(
                f"{path!r} doesn't fit into memory; set {hints.memory_options}: {message}"
            ) from error
        if hints.device is not None and any(sign in text for sign in _NO_DEVICE):
            raise EngineUnavailableError(
                f"{hints.runtime} needs {hints.device}: {message}"
            ) from error
        if isinstance(error, hints.process_errors):
            raise EngineUnavailableError(
                f"{hints.runtime}'s processes didn't start for {path!r}: {message} Their "
                f"output is on standard error; if memory ran out, set {hints.memory_options}"
            ) from error
        raise ConfigurationError(
            f"{hints.runtime} couldn't load {path!r}: {type(error).__name__}: {message}"
        ) from error


@dataclass(frozen=True, slots=True)
class StartedModel(Generic[R]):
    """A runtime that has loaded a checkpoint, with its own description of it.

    Args:
        runtime: the engine's object for it.
        max_model_len: how many tokens it may be fed.
        eos_ids: ids that end a generation, as far as the tokenizer doesn't know them already.
        revision: the commit of a model on the Hub.
    """

    runtime: R
    max_model_len: int
    eos_ids: frozenset[int] = frozenset()
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ServedModel(Generic[R]):
    """A checkpoint that a runtime serves; `identity` is that of `checkpoint_identity`."""

    runtime: R
    tokenizer: Tokenizer
    max_model_len: int
    identity: Mapping[str, Any] | None


def load_serving(
    model: Model,
    *,
    engine: str,
    hints: LoadingHints,
    prepare: Callable[[str, Path | None], Callable[[], StartedModel[R]]],
) -> ServedModel[R]:
    """Load a checkpoint into a serving runtime: arguments, then tokenizer, then weights.

    Args:
        model: the model.
        engine: the engine's public name, for messages.
        hints: the words of `loading_errors`, inside which the runtime is started.
        prepare: imports the runtime and returns what starts it, given the path of the model for
            the runtime, and its folder, None for a Hub id.

    Raises:
        ConfigurationError: nothing loadable is there, or options contradict model or device.
        EngineUnavailableError: the runtime, memory or a device is missing.
    """
    if model.path is None:
        raise ConfigurationError(
            f"engine {engine} needs model.path: a folder, a Hub id, or builtin:tiny"
        )
    folder = model_folder(model.path)
    start = prepare(str(folder or model.path), folder)
    # The tokenizer first: if it is missing, no gigabytes are read in vain.
    tokenizer = load_tokenizer(model, folder)
    with loading_errors(model.path, hints):
        started = start()
    if isinstance(tokenizer, HFTokenizer):
        tokenizer.eos_ids |= started.eos_ids
    identity = checkpoint_identity(model, folder, _WEIGHTS, started.revision)
    return ServedModel(started.runtime, tokenizer, started.max_model_len, identity)


def choose_serving_dtype(asked: str, config: Mapping[str, Any], folder: Path | None) -> str:
    """Return the precision to ask a serving runtime for, whose own `auto` may be a narrower one.

    The checkpoint's for `auto`. With quantised weights it stays `auto`: the kernels decide.
    """
    if asked != "auto" or config.get("quantization_config"):
        return asked
    return find_checkpoint_dtype(config, folder) or asked


def name_precision(dtype: object, quantization: object, cache_dtype: object) -> str:
    """Return the name of an arithmetic; with quantization one to which no close tolerance belongs.

    `dtype` may be torch's. `cache_dtype` is the precision of the cache; None and `auto` mean the
    same as `dtype`.
    """
    name = str(dtype).removeprefix("torch.")
    if quantization is not None:
        return f"{name}, {quantization}"
    if cache_dtype is None or str(cache_dtype) in ("auto", name):
        return name
    return f"{name}, cache in {cache_dtype}"


def find_fallback_reason(
    runtime: object, calls: Sequence[str], *, continuous_batching: bool
) -> str | None:
    """Return why a runtime is given fixed batches; None if it takes requests one by one.

    `calls` are the methods of `runtime` which that takes.
    """
    if not continuous_batching:
        return "continuous_batching is off"
    lacking = [name for name in calls if not hasattr(runtime, name)]
    if not lacking:
        return None
    return f"this release's {type(runtime).__name__} has no {', '.join(lacking)}"


class ServingSession(TokenSession):
    """A session over a runtime that schedules, batches and caches by itself.

    Args:
        engine: the engine's public name, for messages.
        options: the engine's options.
        capabilities: all that the engine can do with this model.
        served: the model.
        requests: the runtime's requests.
        slots: requests that the runtime runs at once.
        listed_tokens: continuations of one token that one request scores.
        dtype: name of the arithmetic (`name_precision`).
        execution: what `describe_execution` adds to the common keys.
        resources: frees the runtime; it is the session's once the constructor has returned.
        fallback: why `requests` are fixed batches; None if they aren't.
        model_vocabulary: ids that the model has an embedding for; None: as the tokenizer.
        scored_tokens: tokens that are scored at once, unless the option says otherwise.
        count_rows: as in `ServingLoop`.
    """

    def __init__(
        self,
        *,
        engine: str,
        options: ServingOptions,
        capabilities: frozenset[Capability],
        served: ServedModel[Any],
        requests: ServingRuntime,
        slots: int,
        listed_tokens: int,
        dtype: str,
        execution: Mapping[str, Any],
        resources: ExitStack,
        fallback: str | None = None,
        model_vocabulary: int | None = None,
        scored_tokens: int = SCORED_TOKENS,
        count_rows: Callable[[SpanGroup], int] = attrgetter("inner"),
    ):
        scored_tokens = options.scored_tokens or scored_tokens
        if fallback is not None:
            _log.warning("%s falls back to fixed batches: %s", engine, fallback)
            capabilities -= {Capability.CONTINUOUS_BATCHING, Capability.STREAM}
        super().__init__(
            engine=engine,
            capabilities=capabilities,
            tokenizer=served.tokenizer,
            max_model_len=served.max_model_len,
            batch_size=options.batch_size if isinstance(options.batch_size, int) else slots,
            scoring_window=_SCORING_WINDOW,
            dtype=dtype,
            model_vocabulary=model_vocabulary,
        )
        self._identity = served.identity
        self._vocabulary = model_vocabulary or served.tokenizer.vocabulary_size
        self._requests = requests
        self._listed_tokens = listed_tokens
        self._loop = ServingLoop(
            requests, slots=slots, scored_tokens=scored_tokens, count_rows=count_rows
        )
        self._execution = {
            **execution,
            "fallback": None if fallback is None else f"fixed batches: {fallback}",
            "scored_tokens": scored_tokens,
        }
        self._resources = resources.pop_all()

    def identity(self) -> dict[str, Any] | None:
        """Return the SHA-256 of each file, or repository and revision; None where unknowable."""
        return None if self._identity is None else dict(self._identity)

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return self._loop.generate(feed)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[SpanScores]:
        return self._loop.score(group_spans(spans, listed_limit=self._listed_tokens))

    def _score_spans(self, spans: Sequence[TokenSpan]) -> Iterator[SpanScores]:
        # The runtime lists the likeliest tokens by itself, faster than whole rows are read.
        return self._score_tokens(spans)

    def _compute_rows(self, spans: Sequence[TokenSpan]) -> Iterator[Rows]:
        return generate_rows(self._loop.generate, spans, self._vocabulary)

    def _describe(self) -> dict[str, Any]:
        return self._execution

    def _release_caches(self) -> None:
        if not self._loop.in_flight:
            with runtime_errors("emptying the prefix cache"):
                self._requests.flush()

    def _release(self) -> None:
        # They hold the runtime, whose memory is freed only once nothing refers to it.
        del self._loop, self._requests
        self._resources.close()


def group_spans(spans: Sequence[TokenSpan], *, listed_limit: int) -> list[SpanGroup]:
    """Group neighbours that differ in their last token alone; keep the order of `spans`.

    A span that wants the likeliest tokens is a group by itself.

    `listed_limit` is the number of tokens that a request can list; 1 if the runtime lists none.
    """
    groups: list[list[TokenSpan]] = []
    for span in spans:
        if groups and len(groups[-1]) < listed_limit and _can_share(groups[-1][0], span):
            groups[-1].append(span)
        else:
            groups.append([span])
    return [SpanGroup(tuple(group)) for group in groups]


def _can_share(one: TokenSpan, other: TokenSpan) -> bool:
    return (
        one.top_logprobs is None
        and other.top_logprobs is None
        and one.start == other.start
        and len(one.token_ids) == len(other.token_ids)
        and list(one.fed) == list(other.fed)
    )
