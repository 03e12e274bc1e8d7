"""Answers on disk, by request and by who answers: the journal of a run, the cache across runs."""
