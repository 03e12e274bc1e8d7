"""GuideLLM on any Evalution engine: the backend of kind `evalution`, and `evalution bench`.

`evalution_guidellm.backend` registers the backend; nothing here imports GuideLLM before it is used.
"""
