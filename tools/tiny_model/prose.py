"""Template prose: short paragraphs for perplexity."""

from __future__ import annotations

from random import Random

from tiny_model.facts import fact_statement
from tiny_model.sums import NAMES, THINGS

_PLACES = ("park", "school", "shop", "river", "garden", "house", "market", "station")
_ANIMALS = ("dog", "cat", "cow", "duck", "sheep", "pig", "owl", "frog")
_WEATHER = ("sunny", "cold", "warm", "windy", "wet", "quiet")
_TIMES = ("morning", "evening", "day", "night")
_SENTENCES = (
    "{name} walks to the {place} with {other}.",
    "{name} sees a {animal} near the {place}.",
    "The {animal} sleeps in the {place} every {time}.",
    "It is a {weather} {time}, and {name} is happy.",
    "{name} buys {things} at the {place} and gives them to {other}.",
    "Every {time} the {animal} runs from the {place} to the {place2}.",
    "{other} asks {name} where the {things} are.",
    "In the {time} {name} and {other} look at the {animal}.",
)


def sentence(random: Random) -> str:
    """One sentence: an event, or now and then a fact of the closed world."""
    if random.random() < 0.25:
        return fact_statement(random)
    name, other = random.sample(NAMES, 2)
    place, place2 = random.sample(_PLACES, 2)
    return random.choice(_SENTENCES).format(
        name=name,
        other=other,
        place=place,
        place2=place2,
        things=random.choice(THINGS),
        animal=random.choice(_ANIMALS),
        weather=random.choice(_WEATHER),
        time=random.choice(_TIMES),
    )


def paragraph(random: Random, sentences: int) -> str:
    """That many sentences, with a space between them."""
    return " ".join(sentence(random) for _ in range(sentences))
