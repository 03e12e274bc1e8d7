"""Registers the provider `evalution/…` with Inspect; imports no engine and no runtime.

The entry point of the group `inspect_ai`. Inspect loads those of all packages whenever it looks for
a task, a tool or a model, so this is its own module, which imports next to nothing.
"""

from __future__ import annotations

from inspect_ai.model import ModelAPI, modelapi


@modelapi(name="evalution")
def evalution() -> type[ModelAPI]:
    """Any engine of Evalution: `--model evalution/MODEL -M engine=NAME -M OPTION=VALUE`."""
    from evalution_inspect.provider import EvalutionAPI  # noqa: PLC0415 - for use alone

    return EvalutionAPI
