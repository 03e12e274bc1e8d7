from __future__ import annotations

import math
from typing import Any

import pytest

from evalution import Perplexity
from evalution_core import ConfigurationError, RollingLoglikelihoodOutput


def test_a_text_is_scored_whole_and_counted_in_words_and_bytes() -> None:
    suite = Perplexity(data=[{"text": " naïve  text"}], text="text")
    sample = next(suite.samples())
    request: Any = sample.requests[0]
    assert request.text == " naïve  text"
    score = suite.score(sample, [RollingLoglikelihoodOutput(-6.0, 4)])
    # lm-eval counts what re.split(r"\s+") gives: the empty text before the first space too.
    assert score.measures["word_perplexity"] == (-6.0, 3)
    assert score.measures["byte_perplexity"] == (-6.0, 13)
    measure = score.measures["bits_per_byte"]
    assert measure is not None
    bits = suite.make_metrics()["bits_per_byte"].of_sample(measure)
    assert bits == pytest.approx(6 / 13 / math.log(2))


def test_an_empty_text_is_refused_with_its_row() -> None:
    suite = Perplexity(data=[{"text": "a"}, {"text": ""}], text="text")
    with pytest.raises(ConfigurationError, match="row 1 of data: the text is empty"):
        suite.check_samples()
