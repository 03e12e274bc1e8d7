"""Training backends for Evalution: evaluate a model while it trains."""
