"""The chat template and its rendering outside transformers."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2.sandbox import ImmutableSandboxedEnvironment

from tiny_model.tokenizer import BOS, EOS

# One line: block trimming, which transformers turns on and plain Jinja doesn't, changes nothing.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def render_chat(messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
    """The messages as the text the model was trained on, BOS included."""
    template = ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE)
    return template.render(
        messages=list(messages),
        bos_token=BOS,
        eos_token=EOS,
        add_generation_prompt=add_generation_prompt,
    )
