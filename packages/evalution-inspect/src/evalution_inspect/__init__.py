"""Inspect and Evalution: any engine as a model provider, runs as Inspect logs."""
