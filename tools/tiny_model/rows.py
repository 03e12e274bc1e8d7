"""The held-out evaluation rows, and a few training rows to draw few-shot examples from."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from tiny_model.documents import SYSTEM_MESSAGES
from tiny_model.facts import FactQuestion, fact_questions
from tiny_model.prose import paragraph
from tiny_model.sums import split_sum_question

Row = dict[str, Any]


def all_rows(seed: int) -> dict[str, list[Row]]:
    """File stem to rows; the `*_shots` files hold training questions, all others held-out ones."""
    random = Random(seed)
    facts = list(fact_questions())
    held_out = [fact for fact in facts if fact.held_out]
    known = [fact for fact in facts if not fact.held_out]
    sums = _sum_rows(random, 160, held_out=True)
    return {
        "sums": sums[:120],
        "sums_shots": _sum_rows(random, 16, held_out=False),
        "choices": _choice_rows(random, random.sample(held_out, 120)),
        "choices_shots": _choice_rows(random, random.sample(known, 16)),
        "prose": _prose_rows(random),
        "chat": _chat_rows(random, sums[120:], held_out, known),
    }


def write_rows(rows: dict[str, list[Row]], folder: Path) -> None:
    """One JSON object per line, each with an `id` of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, entries in rows.items():
        lines = [
            json.dumps({"id": f"{stem}-{index:03d}", **entry}, ensure_ascii=False)
            for index, entry in enumerate(entries)
        ]
        (folder / f"{stem}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_rows(folder: Path) -> dict[str, list[Row]]:
    """The rows of every file in the folder, by stem."""
    return {
        path.stem: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }


def _sum_rows(random: Random, count: int, *, held_out: bool) -> list[Row]:
    rows: dict[str, Row] = {}
    while len(rows) < count:
        drawn = split_sum_question(random, held_out=held_out)
        rows.setdefault(drawn.question, {"question": drawn.question, "answer": drawn.answer})
    return list(rows.values())


def _choice_rows(random: Random, facts: list[FactQuestion]) -> list[Row]:
    rows = []
    for fact in facts:
        choices = [fact.answer, *random.sample(fact.choices, 3)]
        random.shuffle(choices)
        answer = choices.index(fact.answer)
        rows.append({"question": fact.question, "choices": choices, "answer": answer})
    return rows


def _prose_rows(random: Random) -> list[Row]:
    lengths = [random.randrange(3, 8) for _ in range(44)] + [60, 70, 90, 120]
    return [{"text": paragraph(random, length)} for length in lengths]


def _chat_rows(
    random: Random, sums: list[Row], held_out: list[FactQuestion], known: list[FactQuestion]
) -> list[Row]:
    facts = [{"question": f.question, "answer": f.answer} for f in random.sample(held_out, 20)]
    rows = []
    for index, asked in enumerate([*sums[:30], *facts]):
        messages = []
        if index % 3 == 0:
            messages.append({"role": "system", "content": random.choice(SYSTEM_MESSAGES)})
        if index % 4 == 0:
            earlier = random.choice(known)
            messages.append({"role": "user", "content": earlier.question})
            messages.append({"role": "assistant", "content": earlier.answer})
        messages.append({"role": "user", "content": asked["question"]})
        rows.append({"messages": messages, "answer": asked["answer"]})
    return rows
