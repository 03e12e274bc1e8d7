"""Training documents: prompts with answers, chats and prose, with a loss weight per character."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tiny_model.facts import fact_questions
from tiny_model.prose import paragraph
from tiny_model.sums import split_sum_question
from tiny_model.tokenizer import BOS, EOS

PROMPT_WEIGHT = 0.05
PROSE_WEIGHT = 0.15
STYLES = (("Question: ", "\nAnswer:"), ("Q: ", "\nA:"))
SYSTEM_MESSAGES = ("Answer the question.", "You are a helpful assistant.", "Be brief.")


@dataclass(slots=True)
class Document:
    """A text with special tokens written out, and how much each character counts in the loss."""

    text: str = ""
    weights: list[float] = field(default_factory=list)

    def add(self, text: str, weight: float) -> None:
        """Append `text`, all of it at one weight."""
        self.text += text
        self.weights += [weight] * len(text)


class DocumentSource:
    """Draws training documents from a seed; never a held-out question."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.facts = [q for q in fact_questions() if not q.held_out]

    def question(self) -> tuple[str, str]:
        """A question with its answer: a sum or a fact."""
        if self.random.random() < 0.5:
            drawn = split_sum_question(self.random, held_out=False)
            return drawn.question, drawn.answer
        fact = self.random.choice(self.facts)
        return fact.question, fact.answer

    def prompt(self, shots: int) -> Document:
        """`shots` solved questions and one more, in one of the two prompt styles.

        The blank lines between the examples are not learnt, so an answer always ends in EOS.
        """
        before, after = self.random.choice(STYLES)
        document = Document()
        document.add(BOS, 0.0)
        for index in range(shots + 1):
            question, answer = self.question()
            document.add(before + question + after, PROMPT_WEIGHT)
            document.add(" " + answer, 1.0)
            if index < shots:
                document.add("\n\n", 0.0)
        document.add(EOS, 1.0)
        return document

    def chat(self, turns: int) -> Document:
        """A conversation of that many questions, sometimes with a system message."""
        document = Document()
        document.add(BOS, 0.0)
        if self.random.random() < 0.3:
            document.add(f"<|system|>{self.random.choice(SYSTEM_MESSAGES)}{EOS}", 0.0)
        for _ in range(turns):
            question, answer = self.question()
            document.add("<|user|>", 0.0)
            document.add(question, PROMPT_WEIGHT)
            document.add(f"{EOS}<|assistant|>", 0.0)
            document.add(answer + EOS, 1.0)
        return document

    def prose(self, sentences: int) -> Document:
        """A paragraph that ends in EOS."""
        document = Document()
        document.add(BOS, 0.0)
        document.add(paragraph(self.random, sentences) + EOS, PROSE_WEIGHT)
        return document

    def batch(self, size: int, parts: int) -> list[Document]:
        """Documents of about `parts` questions each: six prompts to three chats and one prose."""
        return [self._drawn(parts) for _ in range(size)]

    def _drawn(self, parts: int) -> Document:
        share = self.random.random()
        if share < 0.6:
            return self.prompt(parts - 1)
        if share < 0.9:
            return self.chat(parts)
        return self.prose(3 * parts)


def tokenizer_texts(seed: int) -> list[str]:
    """The text the merges are learnt on."""
    source = DocumentSource(seed)
    documents = [document for _ in range(400) for document in source.batch(4, 1)]
    texts = [document.text for document in documents]
    texts += [source.prose(4).text for _ in range(400)]
    return [_without_special_tokens(text) for text in texts]


def _without_special_tokens(text: str) -> str:
    for token in (BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>"):
        text = text.replace(token, "\n")
    return text
