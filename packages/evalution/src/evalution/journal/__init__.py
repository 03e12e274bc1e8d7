"""Answers on disk, by request and by who answers: the journal of a run, the cache across runs."""

from evalution.journal.database import JournalError
from evalution.journal.records import (
    AnswerBase,
    DamagedAnswerError,
    UnreadableAnswerError,
    decode_answer,
    encode_answer,
    make_answer_base,
    make_cache_key,
    make_request_key,
)
from evalution.journal.store import Journal

__all__ = [
    "AnswerBase",
    "DamagedAnswerError",
    "Journal",
    "JournalError",
    "UnreadableAnswerError",
    "decode_answer",
    "encode_answer",
    "make_answer_base",
    "make_cache_key",
    "make_request_key",
]
