"""Texts that checks send to any model, and completions to start a check from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from evalution_conformance.subject import LONGEST_PROBE, Subject
from evalution_core import Capability, GenerationOutput, GenerationRequest, TextCodec
from evalution_core.encoding import encode_with_leading

PROMPTS = (
    "Question: What is 3 + 4?\nAnswer:",
    "The dog sleeps in the",
    "a",
    "Question: Which emoji shows a cat?\nAnswer:",
    "Q: Leo has 9 cups and gets 8 more. How many cups does Leo have?\nA:",
    "Question: How do you write coffee in French?\nAnswer:",
)
PAIRS = (
    ("Question: What is 3 + 4?\nAnswer:", " 3 + 4 = 7"),
    ("Question: What is 3 + 4?\nAnswer:", " 8"),
    ("Tom and Ann", " walk to the park with the dog."),
    ("The word for cat in Japanese is 猫", ". 犬は動物です"),
    ("A", " b"),
)
TEXTS = ("The cat sees a dog near the park.", "Eva buys 3 cards at the café.\n\nÇa va?", "Yes.")
CHATS = (
    [{"role": "user", "content": "What is 6 + 3?"}],
    [
        {"role": "user", "content": "What is the opposite of up?"},
        {"role": "assistant", "content": "down"},
        {"role": "user", "content": "What is 9 - 4?"},
    ],
)
SENTENCE = "Mia sees a frog near the river, and the cat sleeps in the garden every night. "
WORDS = ("the", "garden", "question", "answer", "every", "morning", "opposite", "Japanese", "near")
CHAT_IN_SPACES = [{"role": "user", "content": " What is 8 - 2? \n"}]
"""Templates may strip it or not: it has to be rendered as the checkpoint's does."""
ENCODING: tuple[str, ...] = (
    "1234567 8.9 + 10,000 = 1e-5",
    " leading",
    "trailing ",
    "two  and   three spaces",
    "a tab\tand\r\na line\n\n",
    "It's; don't 'quote' do n't , it 's ! .",
    "na\u00efve nai\u0308ve \ufb01n \u00bd \uff21 \u00a0\u3000",
    "\u732b \U0001f431 \U0001f469\u200d\U0001f469\u200d\U0001f467",
    "UPPER Lower mIxEd",
)
"""Texts that tokenizers have been seen to read otherwise than their checkpoint says."""
LONG_ENOUGH = 64
"""Tokens within which a completion is expected to end by itself, once in a while."""


_ROUNDS = 6
_LONGEST_WORD = 12
"""Tokens that a word of a probe has at most."""
_PLAIN_LENGTH = 6
_EXACT = 1e-3
"""Up to this tolerance, in nats, a seeded sample is the same in any batch."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A greedy completion and the prompt that it answers."""

    prompt: str
    output: GenerationOutput


def put_behind_words(texts: Sequence[str], count: int) -> list[str]:
    """Repeat the texts, each round behind one more word, until there are `count`."""
    words = SENTENCE.split()
    return [" ".join([*words[: at // len(texts)], texts[at % len(texts)]]) for at in range(count)]


def make_long_text(codec: TextCodec, length: int, *, seed: int) -> str:
    """Make a text of at most `length` tokens, leading ids included, and hardly fewer.

    Texts of two seeds begin differently: what one left in a cache is no use to the other.
    """
    words = random.Random(seed).choices((*SENTENCE.split(), *WORDS), k=length)
    while (excess := len(encode_with_leading(codec, " ".join(words))) - length) > 0:
        del words[-max(1, excess // _LONGEST_WORD) :]
    return " ".join(words)


def make_long_ids(codec: TextCodec, length: int, *, seed: int) -> list[int]:
    """Make a prompt of exactly `length` ids."""
    longer = make_long_text(codec, length + 2 * _LONGEST_WORD, seed=seed)
    return encode_with_leading(codec, longer)[:length]


def change_tokens(token_ids: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ids with one token changed: the last, one in the middle, the first after BOS."""
    for at in (len(token_ids) - 1, len(token_ids) // 2, 1):
        other = next(token_id for token_id in token_ids[1:] if token_id != token_ids[at])
        yield [*token_ids[:at], other, *token_ids[at + 1 :]]


def make_mixed_requests(subject: Subject) -> list[GenerationRequest]:
    """Make requests that use each field whose capability is declared, with one right answer.

    A sample is one token's alone, or its seed's where rounding can't change it.
    """
    text = subject.complete(subject.request(PROMPTS[0])).text
    asked: list[tuple[set[Capability], dict[str, Any]]] = [
        (set(), {"prompt": PROMPTS[1]}),
        (set(), {"max_new_tokens": 3}),
        (set(), {"stop": ["\x00none", text[1:3] or text or "e"]}),
        (set(), {"rendered_prompt": PROMPTS[3]}),
        ({Capability.CHAT}, {"messages": CHATS[0]}),
        ({Capability.LOGPROBS}, {"prompt": PROMPTS[3], "logprobs": 2}),
        (
            {Capability.IGNORE_EOS},
            {"ignore_eos": True, "max_new_tokens": 2 * subject.max_new_tokens},
        ),
        ({Capability.SAMPLING}, {"do_sample": True, "temperature": 2.0, "top_k": 1}),
        ({Capability.SAMPLING}, {"do_sample": True, "temperature": 2.0, "top_p": 1e-9}),
    ]
    if subject.tolerance <= _EXACT:
        sample = {"do_sample": True, "temperature": 2.0, "seed": 7}
        asked.append(({Capability.SAMPLING, Capability.SEED}, sample))
    if subject.session.tokenizer is not None:
        asked.append(({Capability.TOKEN_IDS}, {"input_ids": subject.prompt_ids(PROMPTS[3])}))
    if (window := subject.session.info.max_model_len or LONGEST_PROBE) < LONGEST_PROBE:
        asked.append((set(), {"prompt": SENTENCE * (1 + window // 8)}))
    return [
        subject.request(fields.pop("prompt", PROMPTS[0]), metadata={"row": row}, **fields)
        for row, (needed, fields) in enumerate(asked)
        if needed <= subject.capabilities
    ]


def find_plain_completion(subject: Subject) -> Observation:
    """Find a completion with a few characters of text and no special token in it."""
    return _find_completion(
        subject,
        subject.max_new_tokens,
        lambda output: len(output.text) >= _PLAIN_LENGTH and _is_plain(subject, output),
        f"no probe was answered with {_PLAIN_LENGTH} characters of plain text",
    )


def find_ended_completion(subject: Subject) -> Observation:
    """Find a completion that the model ended by itself, with some text before."""
    return _find_completion(
        subject,
        LONG_ENOUGH,
        lambda output: output.finish_reason == "stop" and bool(output.text),
        f"the model ended no probe's completion within {LONG_ENOUGH} tokens",
    )


def find_multi_byte_completion(subject: Subject) -> Observation:
    """Find a completion in which a character outside ASCII is complete."""
    return _find_completion(
        subject,
        LONG_ENOUGH,
        lambda output: not output.text.isascii(),
        "no probe was answered with a character outside ASCII",
    )


def require_token_ids(output: GenerationOutput) -> list[int]:
    """Return the ids of a completion; skips the check if the session doesn't report them."""
    if output.token_ids is None:
        pytest.skip("the session doesn't report the token_ids of its completions")
    return output.token_ids


def decode_after(subject: Subject, prompt: str, token_ids: list[int]) -> str:
    """Decode `token_ids` after the prompt, with the session's own tokenizer."""
    before = subject.codec.encode(prompt)[-_PLAIN_LENGTH:]
    with_prompt = subject.codec.decode([*before, *token_ids])
    return with_prompt[len(subject.codec.decode(before)) :]


def split_by_token(subject: Subject, observation: Observation) -> list[str]:
    """Split the completion's text by token; a token within a character adds nothing."""
    token_ids = require_token_ids(observation.output)
    pieces: list[str] = []
    done = ""
    for end in range(1, len(token_ids) + 1):
        text = decode_after(subject, observation.prompt, token_ids[:end])
        if text.endswith("\ufffd"):
            text = done
        pieces.append(text[len(done) :])
        done = text
    return pieces


def _find_completion(
    subject: Subject, limit: int, accepts: Callable[[GenerationOutput], bool], missing: str
) -> Observation:
    """Complete the probes, each round after another number of words, until one is accepted."""
    words = SENTENCE.split()
    for number in range(_ROUNDS):
        prompts = [" ".join([*words[: number * 2], prompt]) for prompt in PROMPTS]
        requests = [GenerationRequest(prompt, max_new_tokens=limit) for prompt in prompts]
        for prompt, output in zip(prompts, subject.generate(*requests), strict=True):
            if not accepts(output):
                continue
            # In a batch, rounding may have decided a step otherwise than it does alone.
            alone = subject.complete(GenerationRequest(prompt, max_new_tokens=limit))
            if accepts(alone):
                return Observation(prompt, alone)
    pytest.skip(missing)


def _is_plain(subject: Subject, output: GenerationOutput) -> bool:
    if output.token_ids is None or subject.session.tokenizer is None:
        return True
    shown = subject.codec.decode(output.token_ids, skip_special_tokens=False)
    return shown == subject.codec.decode(output.token_ids)
