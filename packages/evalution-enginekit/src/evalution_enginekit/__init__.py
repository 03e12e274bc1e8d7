"""For engine authors: text above, tokens below, and everything in between written once."""

from evalution_core.encoding import TokenSpan, shared_prefix
from evalution_enginekit.batching import batches, run_continuous_batching
from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.completion import CompletionChunk, RequestPrompt
from evalution_enginekit.generation import PromptQueue, TokenEvent, TokenPrompt
from evalution_enginekit.mock import ByteTokenizer
from evalution_enginekit.model_source import files_identity, model_identity
from evalution_enginekit.planning import (
    ScoringPlan,
    Segment,
    Target,
    TokenScore,
    WrongScoresError,
    plan_scoring,
)
from evalution_enginekit.request_loop import RequestLoop
from evalution_enginekit.request_session import RequestSession
from evalution_enginekit.runtime import import_runtime
from evalution_enginekit.runtime_thread import runtime_errors
from evalution_enginekit.session import TokenSession
from evalution_enginekit.tokenizer import (
    Tokenizer,
    TokenizerFile,
    bind_tokenizer,
    load_tokenizer,
)

__all__ = [
    "ByteTokenizer",
    "ChatTemplate",
    "CompletionChunk",
    "PromptQueue",
    "RequestLoop",
    "RequestPrompt",
    "RequestSession",
    "ScoringPlan",
    "Segment",
    "Target",
    "TokenEvent",
    "TokenPrompt",
    "TokenScore",
    "TokenSession",
    "TokenSpan",
    "Tokenizer",
    "TokenizerFile",
    "WrongScoresError",
    "batches",
    "bind_tokenizer",
    "files_identity",
    "import_runtime",
    "load_tokenizer",
    "model_identity",
    "plan_scoring",
    "run_continuous_batching",
    "runtime_errors",
    "shared_prefix",
]
