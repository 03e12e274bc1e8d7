"""`evalution bench`: GuideLLM's load on an engine or a server, the figures, and their page."""
