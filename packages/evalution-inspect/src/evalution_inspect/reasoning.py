"""What a model thought before it answered, where it says so with `<think>`."""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"


def split_reasoning(prompt: str, text: str) -> tuple[str | None, str]:
    """Reasoning and answer of a completion; None where there is no reasoning.

    It begins at a leading `<think>`, which a chat template may have put at the end of the prompt.
    Where nothing closes it, because the length ran out, all of the text is reasoning.
    """
    begun = text.lstrip()
    if begun.startswith(_OPEN):
        begun = begun.removeprefix(_OPEN)
    elif not prompt.rstrip().endswith(_OPEN):
        return None, text
    reasoning, _, answer = begun.partition(_CLOSE)
    return reasoning.strip() or None, answer.lstrip()
