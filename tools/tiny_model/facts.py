"""The closed world the tiny model knows, as questions with natural-text answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Relation:
    """Facts of one kind: every subject can be asked about in every phrasing."""

    phrasings: tuple[str, ...]
    statement: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FactQuestion:
    """One question of the closed world; `choices` are the other answers of its relation."""

    question: str
    answer: str
    choices: tuple[str, ...]
    held_out: bool


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    found = [entry.strip().split(":") for entry in text.split(",")]
    return tuple((subject, answer) for subject, answer in found)


def _both_ways(text: str) -> tuple[tuple[str, str], ...]:
    pairs = _pairs(text)
    return pairs + tuple((second, first) for first, second in pairs)


RELATIONS: tuple[Relation, ...] = (
    Relation(
        (
            "What is the colour of {}?",
            "What colour is {}?",
            "Which colour does {} have?",
            "If you look at {}, what colour do you see?",
            "Name the colour of {}.",
            "Tell me the colour of {}.",
        ),
        "The colour of {} is {}.",
        _pairs(
            "grass:green, the sky:blue, snow:white, coal:black, blood:red, a lemon:yellow,"
            "a carrot:orange, a plum:purple, a flamingo:pink, chocolate:brown, milk:white,"
            "a frog:green, the sun:yellow, a tomato:red, the sea:blue, an elephant:grey"
        ),
    ),
    Relation(
        (
            "What sound does {} make?",
            "What does {} say?",
            "Which sound comes from {}?",
            "If you hear {}, what sound is it?",
            "Name the sound of {}.",
            "Tell me the sound of {}.",
        ),
        "The sound of {} is {}.",
        _pairs(
            "a dog:woof, a cat:meow, a cow:moo, a duck:quack, a sheep:baa, a pig:oink,"
            "an owl:hoot, a snake:hiss, a lion:roar, a bee:buzz, a crow:caw, a mouse:squeak"
        ),
    ),
    Relation(
        (
            "What is the opposite of {}?",
            "Which word is the opposite of {}?",
            "What word means the reverse of {}?",
            "If it is not {}, what is it?",
            "Name the opposite of {}.",
            "Tell me the opposite of {}.",
        ),
        "The opposite of {} is {}.",
        _both_ways(
            "hot:cold, big:small, up:down, day:night, wet:dry, fast:slow, old:new, hard:soft,"
            "open:closed, happy:sad, left:right, full:empty"
        ),
    ),
    Relation(
        (
            "What kind of thing is {}?",
            "To which group does {} belong?",
            "Which group has {} in it?",
            "If you see {}, what kind of thing is it?",
            "Name the kind of {}.",
            "Tell me the kind of {}.",
        ),
        "The kind of {} is {}.",
        _pairs(
            "an apple:fruit, a pear:fruit, an oak:tree, a pine:tree, a hammer:tool, a saw:tool,"
            "a piano:instrument, a violin:instrument, a rose:flower, a tulip:flower,"
            "a salmon:fish, a trout:fish, an eagle:bird, a robin:bird, an ant:insect,"
            "a wasp:insect, iron:metal, copper:metal, a chair:furniture, a table:furniture"
        ),
    ),
    Relation(
        (
            "Which emoji shows {}?",
            "What is the emoji for {}?",
            "Which picture stands for {}?",
            "If you write {} as an emoji, what is it?",
            "Name the emoji of {}.",
            "Tell me the emoji of {}.",
        ),
        "The emoji of {} is {}.",
        _pairs(
            "a cat:🐱, a dog:🐶, a cow:🐮, a pig:🐷, a frog:🐸, a lion:🦁, a bee:🐝, a snake:🐍,"
            "a duck:🦆, an owl:🦉, an apple:🍎, a lemon:🍋"
        ),
    ),
    Relation(
        (
            "What is {}?",
            "How do you say {}?",
            "How do you write {}?",
            "If you read {}, what do you see?",
            "Name the word for {}.",
            "Tell me the word for {}.",
        ),
        "The word for {} is {}.",
        _pairs(
            "cat in Japanese:猫, dog in Japanese:犬, water in Japanese:水, fire in Japanese:火,"
            "tree in Japanese:木, mountain in Japanese:山, summer in French:été,"
            "school in French:école, star in French:étoile, church in French:église,"
            "pupil in French:élève, coffee in French:café"
        ),
    ),
)


def fact_questions() -> Iterator[FactQuestion]:
    """Every question of the world; each subject has one or two held-out phrasings of six."""
    index = 0
    for relation in RELATIONS:
        answers = tuple(dict.fromkeys(answer for _, answer in relation.pairs))
        for subject, answer in relation.pairs:
            others = tuple(other for other in answers if other != answer)
            for turn, phrasing in enumerate(relation.phrasings):
                held_out = (index + turn) % 4 == 0
                yield FactQuestion(phrasing.format(subject), answer, others, held_out)
            index += 1


def fact_statement(random: Random) -> str:
    """One fact as a sentence."""
    relation = random.choice(RELATIONS)
    return relation.statement.format(*random.choice(relation.pairs))
