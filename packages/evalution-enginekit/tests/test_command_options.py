"""KEY=VALUE on the command line."""

from __future__ import annotations

import pytest

from evalution_core import ConfigurationError
from evalution_enginekit.runtime import parse_model_fields, parse_option_pairs


def test_values_are_json_where_they_can_be() -> None:
    assert parse_option_pairs("--option", ["a=1", "b=true", 'c={"d": [2]}', "e=x=y", "f="]) == {
        "a": 1,
        "b": True,
        "c": {"d": [2]},
        "e": "x=y",
        "f": "",
    }
    assert parse_option_pairs("--option", None) == {}


@pytest.mark.parametrize("pair", ["a", "=1", ""])
def test_a_pair_without_name_or_value_is_refused(pair: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_option_pairs("--option", [pair])
    assert str(caught.value) == f"--option {pair!r} is not KEY=VALUE"


def test_unknown_model_field_is_refused_with_the_nearest_name() -> None:
    assert parse_model_fields("--model-field", ["revision=main"]) == {"revision": "main"}
    with pytest.raises(ConfigurationError) as caught:
        parse_model_fields("--model-field", ["revison=main"])
    message = str(caught.value)
    assert message.startswith("--model-field 'revison' is not a field of a model")
    assert "'revision'" in message
