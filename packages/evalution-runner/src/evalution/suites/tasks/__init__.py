"""Suites that are known by name: rows, prompts and metrics of lm-evaluation-harness 0.4.13."""
