"""For engine authors: text above, tokens below, and everything in between written once."""

from evalution_core.encoding import TokenSpan
from evalution_enginekit.batching import BatchLimits, batches, run_halving
from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.completion import CompletionPiece, RequestPrompt
from evalution_enginekit.generation import TokenFeed, batch_continuously
from evalution_enginekit.model_source import files_identity, model_identity
from evalution_enginekit.planning import ScoringPlan, Segment, Target, plan_scoring, shared_prefix
from evalution_enginekit.request_loop import RequestLoop
from evalution_enginekit.request_session import RequestSession
from evalution_enginekit.runtime import import_runtime, runtime_errors
from evalution_enginekit.session import TokenSession
from evalution_enginekit.tokenizer import ByteTokenizer, Tokenizer
from evalution_enginekit.tokenizer_files import TokenizerFile, bound_tokenizer, load_tokenizer
from evalution_enginekit.tokens import (
    TokenEvent,
    TokenPrompt,
    TokenScore,
    WrongScoresError,
)

__all__ = [
    "BatchLimits",
    "ByteTokenizer",
    "ChatTemplate",
    "CompletionPiece",
    "RequestLoop",
    "RequestPrompt",
    "RequestSession",
    "ScoringPlan",
    "Segment",
    "Target",
    "TokenEvent",
    "TokenFeed",
    "TokenPrompt",
    "TokenScore",
    "TokenSession",
    "TokenSpan",
    "Tokenizer",
    "TokenizerFile",
    "WrongScoresError",
    "batch_continuously",
    "batches",
    "bound_tokenizer",
    "files_identity",
    "import_runtime",
    "load_tokenizer",
    "model_identity",
    "plan_scoring",
    "run_halving",
    "runtime_errors",
    "shared_prefix",
]
