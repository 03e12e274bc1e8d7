"""Inputs of the reference values: strings that engines have been seen to differ on."""

from __future__ import annotations

from random import Random

from tiny_model.prose import paragraph
from tiny_model.rows import Row

SHOTS = (
    "Question: What is 2 + 5?\nAnswer: 2 + 5 = 7\n#### 7\n\n"
    "Question: Which emoji shows a bee?\nAnswer: 🐝\n\n"
)
LONG = paragraph(Random(11), 30)
SCORING = (
    ("Question: What is 3 + 4?\nAnswer:", " 3 + 4 = 7\n#### 7"),
    ("Question: What is 3 + 4?\nAnswer:", " 3 + 4 = 8\n#### 8"),
    ("Question: What is 3 + 4?\nAnswer: ", "3 + 4 = 7\n#### 7"),
    ("Q: Tom has 6 pens and gets 8 more. How many pens does Tom have?\nA:\n", "6 + 8 = 14"),
    ("Question: What colour is grass?\nAnswer:", " green"),
    ("Question: What colour is grass?\nAnswer:", " purple"),
    (SHOTS + "Question: What is the opposite of hot?\nAnswer:", " cold"),
    ("Question: Which emoji shows a cat?\nAnswer:", " 🐱"),
    ("Question: How do you write coffee in French?\nAnswer:", " café"),
    ("The word for cat in Japanese is 猫", ". 犬は動物です"),
    ("Tom and Ann", "a walk to the park with the dog."),
    ("", "The cat sleeps in the garden every night."),
    ("", "7"),
    (" \n", "Mia sees a frog near the river."),
    ("a\tb  c \u00a0 ", "\u3000ﬁn — “quoted” 👩‍👩‍👧 end"),
    (LONG, " Tom walks to the park with Mia."),
)
TRUNCATION = (
    (LONG, " Tom walks to the park with Mia.", 64),
    ("Question: What is 3 + 4?\nAnswer:", " 3 + 4 = 7\n#### 7", 16),
)
GENERATION = (
    ("Question: What is 3 + 4?\nAnswer:", 32),
    ("Q: Leo has 9 cups and gets 8 more. How many cups does Leo have?\nA:", 32),
    ("Q: Nora has 5 eggs, gets 7 more and then 6 more. How many eggs does Nora have?\nA:", 48),
    ("Question: What is 3 + 4?\nAnswer:", 5),
    (SHOTS + "Question: What is the opposite of hot?\nAnswer:", 16),
    ("Question: Which emoji shows a cat?\nAnswer:", 16),
    ("Question: How do you write coffee in French?\nAnswer:", 16),
    ("Q: Name the word for mountain in Japanese.\nA:", 16),
    ("The dog sleeps in the", 12),
    ("", 12),
)
_FULL_PROMPT = " ".join(paragraph(Random(48), 50).split(" ")[:380])
FULL_PROMPTS = ((_FULL_PROMPT, 14), (_FULL_PROMPT, 12))
"""498 tokens, and what is left of 512 or 510: a prompt that is cut is completed otherwise."""
ENCODING = (
    "1234567 8.9 + 10,000 = 1e-5",
    " leading",
    "trailing ",
    "two  and   three spaces",
    "a tab\tand\r\na line\n\n",
    "It's; don't 'quote' do n't , it 's ! .",
    "na\u00efve nai\u0308ve \ufb01n \u00bd \uff21 \u00a0\u3000",
    "\u732b \U0001f431 \U0001f469\u200d\U0001f469\u200d\U0001f467",
    "UPPER Lower mIxEd",
    "<|bos|>spelled<|eos|> out",
)
CHAT: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "What is 6 + 3?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Which emoji shows a frog?"},
    ],
    [
        {"role": "user", "content": "What is the opposite of up?"},
        {"role": "assistant", "content": "down"},
        {"role": "user", "content": "What is 9 - 4?"},
    ],
    [{"role": "user", "content": " What is 8 - 2? \n"}],
)


def rolling_cases(prose: list[Row]) -> list[tuple[str, int]]:
    """Texts with the window length they are rolled at; one has no BOS-sized first word."""
    longest = max((row["text"] for row in prose), key=len)
    return [
        ("The cat sees a dog near the park.", 512),
        ("Eva buys 3 cards 🐸 at the café.\n\nÇa va?", 512),
        (paragraph(Random(12), 12), 64),
        (paragraph(Random(13), 6), 7),
        (longest, 512),
    ]
