"""What is asked of any model: short texts that language models of all kinds go on with."""

from __future__ import annotations

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
LONG_ENOUGH = 64
"""Tokens within which a completion is expected to end by itself, once in a while."""
