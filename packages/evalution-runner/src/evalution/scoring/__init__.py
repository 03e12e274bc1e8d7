"""From answers to scores: filters of texts, and metrics with their standard errors."""
