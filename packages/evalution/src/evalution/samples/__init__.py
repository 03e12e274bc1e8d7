"""Samples of a run: one of them, the form of `samples.jsonl`, and reading it without holding it."""
