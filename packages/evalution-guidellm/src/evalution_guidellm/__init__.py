"""GuideLLM on any Evalution engine, and `evalution bench`."""
