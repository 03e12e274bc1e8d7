"""Engines by name: listing imports nothing, and one broken plugin hurts no other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pydantic
import pytest

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    ConfigurationError,
    EngineUnavailableError,
    Model,
    UnknownEngineError,
    discovery,
    load_engine,
    register_engine,
)
from evalution_core.discovery import available
from evalution_core.plugins import list_entry_points

ENGINE = """
from dataclasses import dataclass
from evalution_core import BaseEngine

@dataclass(slots=True)
class {name}(BaseEngine):
    device: str = "cpu"
    def build(self, model):
        raise NotImplementedError
"""

Install = Callable[..., None]


def imported_from(folder: Path) -> set[str]:
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return {name for name, file in files.items() if file and Path(file).parent == folder}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts distributions with engines where the interpreter finds them, and only these."""
    pydantic.create_model("Loaded")  # its parts are imported at first use, which must find them
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(discovery.ENGINES, "_registered", {})
    monkeypatch.setattr(discovery.ENGINES, "own", {"VLLM": "evalution-vllm"})
    monkeypatch.setattr(discovery.ENGINES, "aliases", {"pagedattention": "VLLM block_size: 16"})

    def install(distribution: str, engines: dict[str, str], *, source: str | None = None) -> None:
        folder = tmp_path / f"{distribution.replace('-', '_')}-2.5.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.5\n", encoding="utf-8"
        )
        lines = [f"{name} = {value}" for name, value in engines.items()]
        (folder / "entry_points.txt").write_text(
            "\n".join(["[evalution.engines]", *lines]) + "\n", encoding="utf-8"
        )
        if source is None:
            source = "".join(
                ENGINE.format(name=value.rpartition(":")[2]) for value in engines.values()
            )
        module = next(iter(engines.values())).partition(":")[0]
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")

    yield install
    for name in imported_from(tmp_path):
        del sys.modules[name]


@dataclass(slots=True)
class Buildable(BaseEngine):
    def build(self, model: Model) -> BaseInferenceSession:
        raise NotImplementedError


@register_engine("slots-below")
@dataclass(slots=True)
class SlotsBelow(Buildable):
    depth: int = 1


@dataclass(slots=True)
@register_engine("slots-above")
class SlotsAbove(Buildable):
    depth: int = 1


# listing


def test_listing_reads_metadata_and_imports_nothing(install: Install, tmp_path: Path) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme", "AcmeMini": "acme_plugin:AcmeMini"})
    install("broken-engine", {"Broken": "broken_plugin:Broken"}, source="raise ImportError('x')")
    listed = [(entry.name, entry.distribution, entry.version) for entry in available()]
    assert listed == [
        ("Acme", "acme-engines", "2.5"),
        ("AcmeMini", "acme-engines", "2.5"),
        ("Broken", "broken-engine", "2.5"),
    ]
    assert imported_from(tmp_path) == set()


def test_loading_imports_that_engine_alone(install: Install, tmp_path: Path) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme"})
    install("other-engine", {"Other": "other_plugin:Other"})
    assert load_engine("Acme").__name__ == "Acme"
    assert imported_from(tmp_path) == {"acme_plugin"}


def test_nothing_is_listed_where_nothing_is_installed(install: Install) -> None:
    assert available() == []


LATIN = "Version: 2.5\nName: broken-engine\nSummary: \xe9\n".encode("latin-1")


@pytest.mark.parametrize(
    ("file", "content", "cause"),
    [
        ("entry_points.txt", b"[evalution.engines]\nno value\n", "TypeError: "),
        ("entry_points.txt", b"[evalution.engines]\nX = \xe9:X\n", "UnicodeDecodeError: "),
        ("METADATA", LATIN, "UnicodeDecodeError: "),
        ("METADATA", b"Version: 2.5\n", "KeyError: 'name'"),
        ("METADATA", None, "KeyError: 'name'"),
    ],
)
def test_distribution_with_unreadable_metadata_is_left_out_and_named_once(
    install: Install,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    file: str,
    content: bytes | None,
    cause: str,
) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme"})
    install("broken-engine", {"Broken": "broken_plugin:Broken"})
    path = tmp_path / "broken_engine-2.5.dist-info" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert [entry.name for entry in available()] == ["Acme"]
    assert load_engine("Acme").__name__ == "Acme"
    assert list_entry_points("evalution.suites") == []
    (warning,) = caplog.records
    assert (warning.name, warning.levelname) == ("evalution", "WARNING")
    assert warning.getMessage().startswith(
        f"broken_engine in {tmp_path} is left out, as its metadata can't be read; reinstall or "
        f"remove it: {cause}"
    )


def test_first_distribution_of_a_name_on_the_path_hides_others(
    install: Install, tmp_path: Path
) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme"})
    newer = tmp_path / "newer"
    (newer / "acme_engines-3.0.dist-info").mkdir(parents=True)
    sys.path.insert(0, str(newer))
    assert available() == []


# names


@pytest.mark.parametrize(
    "name", ["LlamaCpp", "llamacpp", "llama-cpp", "LLAMA_CPP", "acme-llama/llama_cpp"]
)
def test_case_and_separators_do_not_count(install: Install, name: str) -> None:
    install("acme-llama", {"LlamaCpp": "acme_llama_plugin:LlamaCpp"})
    assert load_engine(name).__name__ == "LlamaCpp"


def test_a_dotted_path_needs_no_packaging(install: Install, tmp_path: Path) -> None:
    (tmp_path / "loose_engine.py").write_text(ENGINE.format(name="Loose"), encoding="utf-8")
    assert load_engine("loose_engine:Loose")().to_dict() == {"device": "cpu"}


def test_a_nested_class_has_a_dotted_path(install: Install, tmp_path: Path) -> None:
    body = ENGINE.format(name="Inner") + "\nclass Outer:\n    Kept = Inner\n"
    (tmp_path / "nested_engine.py").write_text(body, encoding="utf-8")
    assert load_engine("nested_engine:Outer.Kept").__name__ == "Inner"


def test_a_clash_is_refused_with_both_names_and_either_can_be_picked(install: Install) -> None:
    install("acme-one", {"Acme": "acme_one_plugin:Acme"})
    install("acme-two", {"ACME": "acme_two_plugin:Acme"})
    with pytest.raises(ConfigurationError) as caught:
        load_engine("acme")
    assert str(caught.value) == (
        "engine 'acme' is provided more than once; name one of: acme-one/Acme, acme-two/ACME"
    )
    assert load_engine("acme-one/Acme").__module__ == "acme_one_plugin"
    assert load_engine("ACME_two/acme").__module__ == "acme_two_plugin"


@pytest.mark.parametrize("name", ["VLLM", "vllm", "v-llm"])
def test_name_of_this_project_stays_with_its_package(install: Install, name: str) -> None:
    install("evalution_vllm", {"VLLM": "real_plugin:VLLM"})
    install("same-name", {"vllm": "shadow_plugin:VLLM"})
    assert load_engine(name).__module__ == "real_plugin"
    assert load_engine("same-name/VLLM").__module__ == "shadow_plugin"
    assert set(discovery.ENGINES.names()) == {"VLLM", "same-name/vllm"}


def test_engine_registered_in_this_process_is_not_shadowed(install: Install) -> None:
    install("evalution-vllm", {"VLLM": "real_plugin:VLLM"})
    register_engine("vllm")(Buildable)
    with pytest.raises(ConfigurationError, match="name one of: in-process/vllm, evalution-vllm/V"):
        load_engine("vLLM")


def test_a_name_in_a_distribution_that_lacks_it_is_unknown(install: Install) -> None:
    install("acme-one", {"Acme": "acme_one_plugin:Acme"})
    with pytest.raises(UnknownEngineError, match="no engine 'acme-three/Acme' is installed"):
        load_engine("acme-three/Acme")


def test_an_unknown_name_names_the_nearest_and_lists_all(install: Install) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme", "Zebra": "acme_plugin:Zebra"})
    with pytest.raises(UnknownEngineError) as caught:
        load_engine("acmee")
    assert str(caught.value) == (
        "no engine 'acmee' is installed; did you mean 'Acme'? (installed: Acme, Zebra)"
    )


def test_an_unknown_name_with_a_hint_says_what_to_install(install: Install) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme"})
    with pytest.raises(UnknownEngineError) as caught:
        load_engine("V-LLM")
    assert str(caught.value) == (
        "no engine 'V-LLM' is installed; pip install evalution-vllm (installed: Acme)"
    )
    with pytest.raises(UnknownEngineError) as caught:
        load_engine("vlm")
    assert str(caught.value) == (
        "no engine 'vlm' is installed; did you mean 'VLLM'? pip install evalution-vllm "
        "(installed: Acme)"
    )


def test_word_of_another_tool_leads_to_the_engine_and_its_options(install: Install) -> None:
    with pytest.raises(UnknownEngineError) as caught:
        load_engine("paged-attention")
    assert str(caught.value) == (
        "no engine 'paged-attention' is installed; did you mean 'VLLM' with block_size: 16? "
        "pip install evalution-vllm (installed: none)"
    )
    install("evalution-vllm", {"VLLM": "vllm_plugin:VLLM"})
    with pytest.raises(UnknownEngineError, match=r"block_size: 16\? \(installed: VLLM\)$"):
        load_engine("PagedAttention")


def test_an_unknown_name_where_nothing_is_installed(install: Install) -> None:
    with pytest.raises(UnknownEngineError) as caught:
        load_engine("Acme")
    assert str(caught.value) == "no engine 'Acme' is installed (installed: none)"


# plugins that don't work

BROKEN = {
    "raise RuntimeError('no licence')": "RuntimeError: no licence",
    "import a_runtime_that_is_missing": (
        "ModuleNotFoundError: No module named 'a_runtime_that_is_missing'"
    ),
    "x = (": "SyntaxError: '(' was never closed (broken_plugin.py, line 1)",
    "x = 1": "AttributeError: module 'broken_plugin' has no attribute 'Broken'",
    "raise SystemExit(7)": "SystemExit: 7",
    "class Panic(BaseException): pass\nraise Panic('a Rust extension')": "Panic: a Rust extension",
    ENGINE.format(name="Broken") + "    contract = '1'\n": (
        "TypeError: '<' not supported between instances of 'str' and 'int'"
    ),
}


@pytest.mark.parametrize(("source", "cause"), BROKEN.items())
def test_a_broken_plugin_is_named_with_its_cause_and_hurts_no_other(
    install: Install, source: str, cause: str
) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme"})
    install("broken-engine", {"Broken": "broken_plugin:Broken"}, source=source)
    with pytest.raises(EngineUnavailableError) as caught:
        load_engine("Broken")
    assert str(caught.value) == (
        f"engine 'Broken' of broken-engine (broken_plugin:Broken) can't be loaded: {cause}"
    )
    assert caught.value.__cause__ is not None
    assert [entry.name for entry in available()] == ["Acme", "Broken"]
    assert load_engine("Acme").__name__ == "Acme"


def test_import_error_is_scrubbed_of_secrets(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_API_KEY", "acme-0123456789")
    source = "import os\nraise OSError(f'{os.environ[\"ACME_API_KEY\"]} at https://me:pass@acme')"
    install("broken-engine", {"Broken": "broken_plugin:Broken"}, source=source)
    with pytest.raises(EngineUnavailableError, match=r"OSError: \*\*\* at https://\*\*\*@acme$"):
        load_engine("Broken")


def test_entry_point_without_a_class_says_how_to_write_it(install: Install) -> None:
    install("broken-engine", {"Broken": "broken_plugin"}, source="")
    with pytest.raises(
        EngineUnavailableError, match=r"names no class; write it as package\.module:C"
    ):
        load_engine("Broken")


def test_entry_point_may_have_blanks_and_extras(install: Install) -> None:
    install(
        "acme-engines", {"Acme": "acme_plugin : Acme [fast]"}, source=ENGINE.format(name="Acme")
    )
    (folder,) = sys.path
    Path(folder, "acme_plugin .py").rename(Path(folder, "acme_plugin.py"))
    assert load_engine("Acme").__name__ == "Acme"


def test_abstract_engine_is_refused_when_it_is_loaded(install: Install) -> None:
    source = "from evalution_core import BaseEngine\nclass Broken(BaseEngine): ..."
    install("broken-engine", {"Broken": "broken_plugin:Broken"}, source=source)
    with pytest.raises(ConfigurationError) as caught:
        load_engine("Broken")
    assert str(caught.value) == "engine 'Broken' of broken-engine is abstract: it lacks build"


def test_an_error_of_our_own_comes_out_as_it_is(install: Install) -> None:
    source = "from evalution_core import EngineUnavailableError\n"
    source += "raise EngineUnavailableError('needs Linux')"
    install("broken-engine", {"Broken": "broken_plugin:Broken"}, source=source)
    with pytest.raises(EngineUnavailableError, match=r"^needs Linux$"):
        load_engine("Broken")


@pytest.mark.parametrize("value", ["class Broken: pass", "Broken = 3"])
def test_what_is_no_engine_is_refused(install: Install, value: str) -> None:
    install("broken-engine", {"Broken": "broken_plugin:Broken"}, source=value)
    with pytest.raises(
        ConfigurationError, match=r"^engine 'Broken' of broken-engine isn't a BaseEn"
    ):
        load_engine("Broken")


@pytest.mark.parametrize(("number", "older"), [(0, "engine"), (2, "evalution-core")])
def test_another_contract_is_refused_and_says_what_to_upgrade(
    install: Install, number: int, older: str
) -> None:
    source = ENGINE.format(name="Broken") + f"    contract = {number}\n"
    install("broken-engine", {"Broken": "broken_plugin:Broken"}, source=source)
    with pytest.raises(EngineUnavailableError) as caught:
        load_engine("Broken")
    assert str(caught.value) == (
        f"engine 'Broken' of broken-engine was written for contract {number}, this "
        f"evalution-core implements 1; upgrade the {older}"
    )


# registered in the process


@pytest.mark.parametrize(
    ("name", "engine"),
    [("slots-below", SlotsBelow), ("Slots_Below", SlotsBelow), ("slots-above", SlotsAbove)],
)
def test_a_registered_class_is_the_one_that_its_module_has(
    name: str, engine: type[BaseEngine]
) -> None:
    found = load_engine(name)
    assert found is engine
    assert found.from_options({"depth": 2}).to_dict() == {"depth": 2}


def test_a_registered_engine_is_listed_without_a_distribution() -> None:
    (entry,) = (entry for entry in available() if entry.name == "slots-below")
    assert (entry.value, entry.distribution) == (f"{__name__}:SlotsBelow", None)


def test_a_registered_name_is_taken_once(install: Install) -> None:
    register_engine("mine")(SlotsBelow)
    register_engine("Mine")(SlotsBelow)
    with pytest.raises(ConfigurationError) as caught:
        register_engine("MINE")(SlotsAbove)
    assert str(caught.value) == (
        f"engine 'MINE' is already registered by {__name__}:SlotsBelow; choose another name"
    )


def test_a_class_within_a_function_can_not_be_registered(install: Install) -> None:
    with pytest.raises(ConfigurationError) as caught:

        @register_engine("local")
        @dataclass(slots=True)
        class Local(Buildable):
            pass

    told = "test_a_class_within_a_function_can_not_be_registered.<locals>.Local"
    assert str(caught.value) == f"@register_engine('local'): {told} must stand at module level"
    assert available() == []


def test_a_registered_engine_that_is_gone_is_named(install: Install) -> None:
    register_engine("gone")(type("Gone", (Buildable,), {"__module__": __name__}))
    with pytest.raises(
        EngineUnavailableError, match=r"^engine 'gone' .*can't be loaded: Attribute"
    ):
        load_engine("gone")


def test_a_registered_engine_clashes_with_an_installed_one(install: Install) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme"})
    register_engine("Acme")(SlotsBelow)
    with pytest.raises(ConfigurationError) as caught:
        load_engine("Acme")
    told = "engine 'Acme' is provided more than once; name one of: "
    assert str(caught.value).startswith(told)
    assert load_engine("acme-engines/Acme").__module__ == "acme_plugin"


def test_a_registered_engine_can_be_picked_from_a_clash(install: Install) -> None:
    install("acme-engines", {"Acme": "acme_plugin:Acme"})
    register_engine("Acme")(SlotsBelow)
    with pytest.raises(ConfigurationError) as caught:
        load_engine("Acme")
    choices = str(caught.value).partition("name one of: ")[2].split(", ")
    assert {load_engine(choice).__name__ for choice in choices} == {"Acme", "SlotsBelow"}


@pytest.mark.parametrize(
    "name", ["no_module:Engine", "json.no:Engine", "json:Engine", ":", "json:"]
)
def test_a_module_or_class_that_is_not_there_is_unknown(name: str) -> None:
    with pytest.raises(UnknownEngineError, match=f"^engine '{name}' .*can't be loaded: "):
        load_engine(name)


def test_a_module_that_lacks_another_one_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacks.py").write_text("import lacks_runtime\n")
    (tmp_path / "breaks.py").write_text("[].nothing\n")
    for name in ("lacks:Engine", "breaks:Engine"):
        with pytest.raises(EngineUnavailableError, match="can't be loaded"):
            load_engine(name)
