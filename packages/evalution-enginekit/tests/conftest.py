"""A toy engine whose every answer can be worked out by hand, and the golden tokenizers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from evalution_core import Capability, EvalutionError
from evalution_enginekit import (
    ByteTokenizer,
    PromptQueue,
    TokenEvent,
    TokenizerFile,
    TokenPrompt,
    TokenScore,
    TokenSession,
    TokenSpan,
)

GOLDEN = Path(__file__).parent / "golden"
CAPABILITIES = frozenset(Capability) - {
    Capability.ATTACH,
    Capability.BEAMS,
    Capability.LOGPROBS,
    Capability.MULTIMODAL,
    Capability.DISTRIBUTIONS,
    Capability.PROMPT_TOP_LOGPROBS,
}


class Echo(TokenSession):
    """Completes a prompt with the prompt's own text, a byte a step, then the end token.

    `before_step` runs on the runtime thread before each step and may block or raise; `poison` may
    name an error for a prompt, `score` be replaced. What was admitted, dropped, run and scored is
    kept in order.
    """

    def __init__(self, *, batch_size: int = 2, without: Sequence[Capability] = (), **options: Any):
        super().__init__(
            engine="Echo",
            capabilities=CAPABILITIES - set(without),
            tokenizer=options.pop("tokenizer", ByteTokenizer()),
            max_model_len=options.pop("max_model_len", 128),
            batch_size=batch_size,
            **options,
        )
        self.before_step: Callable[[], None] = lambda: None
        self.poison: Callable[[TokenPrompt], EvalutionError | None] = lambda _: None
        self.score: Callable[[TokenSpan], Any] = score
        self.admitted: list[TokenPrompt] = []
        self.dropped: list[int] = []
        self.steps: list[list[int]] = []
        self.chunks: list[list[TokenSpan]] = []
        self.released = 0

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        running: dict[int, Iterator[tuple[TokenEvent, bool]]] = {}
        while True:
            for key in feed.cancelled():
                self.dropped.append(key)
                running.pop(key, None)
            if Capability.CONTINUOUS_BATCHING in self._capabilities or not running:
                for prompt in feed.take(self._batch_size - len(running)):
                    self.admitted.append(prompt)
                    running[prompt.key] = self._echo(prompt)
            if not running:
                return
            self.before_step()
            self.steps.append(list(running))
            events = [next(sequence) for sequence in running.values()]
            for event, ends in events:
                if ends:
                    del running[event.key]
            yield [event for event, _ in events]

    def _echo(self, prompt: TokenPrompt) -> Iterator[tuple[TokenEvent, bool]]:
        if (error := self.poison(prompt)) is not None:
            yield TokenEvent(prompt.key, error=error), True
        text = [i for i in prompt.token_ids if i < 256]
        for count, token_id in enumerate(cycle([*text, 257]), start=1):
            ends = token_id in prompt.stop_ids or count == prompt.max_new_tokens
            yield TokenEvent(prompt.key, [token_id]), ends

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[Any]]:
        self.chunks.append(list(spans))
        yield [self.score(span) for span in spans]

    def _release(self) -> None:
        self.released += 1


def pair_logprob(before: int, token_id: int) -> float:
    """The toy's whole language model: a token's log-probability given the one before."""
    return -(1 + (before * 31 + token_id * 7) % 97) / 16


def score(span: TokenSpan) -> TokenScore:
    ids = span.token_ids
    return TokenScore([pair_logprob(ids[at - 1], ids[at]) for at in range(span.start, len(ids))])


@pytest.fixture
def echo() -> Iterator[Callable[..., Echo]]:
    """Builds toy sessions and closes them; a test that leaves one hanging fails by its waits."""
    built: list[Echo] = []

    def build(**options: Any) -> Echo:
        built.append(Echo(**options))
        return built[-1]

    yield build
    for session in built:
        session.before_step = lambda: None
        session.close()


@pytest.fixture
def echo_class() -> type[Echo]:
    return Echo


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `serving_toys`: a runtime of each kind, and a session over it."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return import_module("serving_toys")


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that must not block the test; wait for them with a timeout."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, so that nobody waits on it for ever."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    return json.loads((GOLDEN / "golden_pairs.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def golden_folders(
    golden: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A model folder for each golden tokenizer: `tokenizer.json` and its configuration."""
    folders: dict[str, Path] = {}
    for name, specials in golden["special_tokens"].items():
        folders[name] = tmp_path_factory.mktemp(name)
        (folders[name] / "tokenizer.json").write_bytes((GOLDEN / f"{name}.json").read_bytes())
        (folders[name] / "tokenizer_config.json").write_text(json.dumps(specials))
    return folders


@pytest.fixture
def folder(golden_folders: dict[str, Path], tmp_path: Path) -> Path:
    """The golden byte-level tokenizer: `<s>` is 0 and leads, `</s>` is 1."""
    for file in golden_folders["bytelevel"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def incomplete_folder(golden_folders: dict[str, Path], tmp_path: Path) -> Path:
    """The golden byte-level tokenizer without `e`, and with an unknown token that it lacks."""
    content = json.loads((golden_folders["bytelevel"] / "tokenizer.json").read_text("utf-8"))
    del content["model"]["vocab"]["e"]
    merges = [merge for merge in content["model"]["merges"] if "e" not in "".join(merge)]
    content["model"] |= {"unk_token": "<none>", "merges": merges}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path


@pytest.fixture(scope="session")
def golden_tokenizers(golden_folders: dict[str, Path]) -> dict[str, TokenizerFile]:
    pytest.importorskip("tokenizers", reason="needs evalution-enginekit[tokenizers]")
    return {
        name: TokenizerFile(folder / "tokenizer.json") for name, folder in golden_folders.items()
    }
