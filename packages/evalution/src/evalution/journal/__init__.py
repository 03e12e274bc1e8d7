"""Answers on disk, by what was asked of whom: the journal of a run, and the cache across runs."""

from evalution.journal.answer_records import UnreadableAnswerError, decode_answer, encode_answer
from evalution.journal.database import JournalError
from evalution.journal.keys import AnswerBase, answer_base, cache_key, request_key
from evalution.journal.store import Journal

__all__ = [
    "AnswerBase",
    "Journal",
    "JournalError",
    "UnreadableAnswerError",
    "answer_base",
    "cache_key",
    "decode_answer",
    "encode_answer",
    "request_key",
]
