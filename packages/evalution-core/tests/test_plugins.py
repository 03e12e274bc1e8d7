"""A registry of plugins of any kind; the one of engines is tested in test_discovery."""

from __future__ import annotations

import pytest

from evalution_core.errors import ConfigurationError, EngineUnavailableError
from evalution_core.plugins import PluginRegistry, did_you_mean, nearest_name, normalize


class Sorter:
    """Registered below as a plugin."""


def check(found: object, what: str) -> type:
    if not isinstance(found, type):
        raise ConfigurationError(f"{what} isn't a class, but {found!r}")
    return found


def registry(**built_in: str) -> PluginRegistry[type]:
    return PluginRegistry(
        "evalution.tests.sorters",
        "sorter",
        check,
        built_in=built_in,
        distribution="acme",
        own={"heap": '"acme-heap[fast]"'},
    )


def test_built_in_plugins_are_found_without_entry_points() -> None:
    sorters = registry(quick="collections:OrderedDict", Slow="collections:Counter")
    listed = [(entry.name, entry.source, entry.version) for entry in sorters.entries()]
    assert listed == [("quick", "acme", None), ("Slow", "acme", None)]
    assert sorters.load("QUICK").__name__ == "OrderedDict"
    assert sorters.load("acme/slow").__name__ == "Counter"


def test_name_that_is_spelt_exactly_goes_before_one_that_is_alike() -> None:
    sorters = registry(quick="collections:OrderedDict", Quick="collections:Counter")
    assert sorters.load("Quick").__name__ == "Counter"
    with pytest.raises(ConfigurationError, match="provided more than once; name one of: acme/"):
        sorters.load("QUICK")


def test_registered_class_is_looked_up_when_it_is_used() -> None:
    sorters = registry()
    sorters.register("own")(Sorter)
    sorters.register("own")(Sorter)
    assert sorters.find("own").source == "in-process"
    assert sorters.load("own") is Sorter


def test_other_class_under_a_registered_name_is_refused() -> None:
    sorters = registry()
    sorters.register("own")(Sorter)
    with pytest.raises(ConfigurationError, match=r"sorter 'Own' is already registered by .*Sorter"):
        sorters.register("Own")(OtherSorter)


class OtherSorter: ...


def test_class_of_a_function_can_not_be_registered() -> None:
    class Local: ...

    with pytest.raises(ConfigurationError, match=r"@register_sorter\('x'\): .* at module level"):
        registry().register("x")(Local)


def test_unknown_name_lists_what_is_there_and_the_nearest() -> None:
    sorters = registry(quick="collections:OrderedDict")
    with pytest.raises(ConfigurationError) as caught:
        sorters.load("quik")
    assert str(caught.value) == (
        "no sorter 'quik' is installed; did you mean 'quick'? (installed: quick)"
    )
    with pytest.raises(ConfigurationError, match=r'; pip install "acme-heap\[fast\]" \(inst'):
        sorters.load("heap")


def test_plugin_that_is_no_such_thing_is_refused_by_the_check() -> None:
    with pytest.raises(ConfigurationError, match="sorter 'x' of acme isn't a class"):
        registry(x="math:pi").load("x")


def test_plugin_whose_module_is_missing_is_unavailable_or_unknown() -> None:
    with pytest.raises(EngineUnavailableError, match=r"sorter 'x' of acme .* can't be loaded: Mod"):
        registry(x="nowhere_at_all:X").load("x")
    with pytest.raises(ConfigurationError, match="can't be loaded: ModuleNotFoundError"):
        registry().load("nowhere_at_all:X")


def test_names_are_compared_without_case_and_separators() -> None:
    assert normalize("My-Engine_2") == "myengine2"
    assert nearest_name("tokeniser", ["tokenizer", "model"]) == "tokenizer"
    assert did_you_mean("zzz", ["tokenizer"]) == ""


def test_only_name_that_begins_so_is_the_nearest() -> None:
    assert nearest_name("ref", ["Reference", "Rerank"]) == "Reference"
    assert nearest_name("openai", ["OpenVINO", "OpenAICompatible"]) == "OpenAICompatible"
    assert nearest_name("transformer", ["TransformersCompat", "Transformers"]) == "Transformers"
