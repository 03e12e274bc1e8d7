"""Engines and suites of other packages: found by metadata, and no worse for a broken neighbour."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution import Generation
from evalution.suites import available_suites, load_suite
from evalution.user_input import allow_code
from evalution.yaml_spec.run_spec import parse_engine
from evalution_core import ConfigurationError, EngineUnavailableError, UnknownEngineError

ENGINE = """
from dataclasses import dataclass
from evalution_enginekit.mock import Mock

@dataclass(slots=True)
class Good(Mock):
    pass
"""
SUITE = """
from dataclasses import dataclass
from evalution import Generation

@dataclass(kw_only=True)
class Echo(Generation):
    target: str = "question"
"""


@pytest.fixture
def site(tmp_path: Path, plugin: Any) -> Path:
    """A folder with one good distribution and three that are broken each in its own way."""
    plugin("good", "[evalution.engines]\nGood = good:Good\n", good=ENGINE)
    plugin("raising", entry("Raising", "raising:X"), raising="raise RuntimeError('it broke')\n")
    plugin("absent", entry("Absent", "no_such_module:X"), absent="")
    plugin("foreign", entry("Foreign", "foreign:X"), foreign="X = 3\n")
    plugin("exiting", entry("Exiting", "exiting:X"), exiting="raise SystemExit(7)\n")
    plugin("shadow", entry("Reference", "shadow:Good"), shadow=ENGINE)
    plugin("malformed", "[evalution.suites]\nMalformed = no class\n")
    plugin("echo", "[evalution.suites]\nEcho = echo:Echo\n", echo=SUITE)
    (tmp_path / "rows.jsonl").write_text('{"question": "x"}\n')
    return tmp_path


def entry(name: str, value: str) -> str:
    return f"[evalution.engines]\n{name} = {value}\n"


def test_a_suite_that_two_packages_bring_is_named_by_one(
    site: Path, plugin: Any, command_line: Any
) -> None:
    plugin("other", "[evalution.suites]\nEcho = other:Echo\n", other=SUITE)
    with pytest.raises(ConfigurationError) as caught:
        load_suite("echo")
    assert str(caught.value) == (
        "suite 'echo' is provided more than once; name one of: echo-plugin/Echo, other-plugin/Echo"
    )
    assert load_suite("other-plugin/Echo").__module__ == "other"
    assert {"echo-plugin/Echo", "other-plugin/Echo"} <= set(available_suites())


def test_an_exact_name_goes_before_one_that_is_alike(
    site: Path, plugin: Any, command_line: Any
) -> None:
    plugin("other", "[evalution.suites]\necho = other:Echo\n", other=SUITE)
    assert load_suite("Echo").__module__ == "echo"
    assert load_suite("echo").__module__ == "other"


def test_no_package_takes_the_place_of_a_built_in_suite(
    site: Path, plugin: Any, command_line: Any
) -> None:
    plugin("other", "[evalution.suites]\nGeneration = other:Echo\n", other=SUITE)
    assert load_suite("generation") is load_suite("Generation") is Generation
    assert load_suite("other-plugin/Generation").__module__ == "other"
    assert {"Generation", "other-plugin/Generation"} <= set(available_suites())


def write_spec(site: Path, engine: str) -> str:
    (site / "spec.yaml").write_text(
        f"engine: {engine}\nmodel: m\ntests: [{{type: echo, data: rows.jsonl, prompt: question}}]\n"
    )
    return "spec.yaml"


def test_all_are_listed_and_none_imported(command_line: Any, site: Path) -> None:
    done = command_line("engines")
    assert done.returncode == 0, done.stderr
    for name in ("Good", "Raising", "Absent", "Foreign", "Exiting", "good-plugin", "2.1"):
        assert name in done.stdout


def test_a_good_one_runs_beside_broken_ones(command_line: Any, site: Path) -> None:
    done = command_line("run", write_spec(site, "good"), "--output", "out")
    assert done.returncode == 0, done.stderr
    assert "exact_match" in done.stdout
    results = (site / "out" / "results.json").read_text(encoding="utf-8")
    assert '"distribution": "good-plugin"' in results
    assert '"version": "2.1"' in results


@pytest.mark.parametrize("file", ["entry_points.txt", "METADATA"])
def test_a_run_goes_on_beside_a_distribution_that_can_not_be_read(
    command_line: Any, plugin: Any, folder: Path, spec: Callable[..., str], file: str
) -> None:
    plugin("unreadable", entry("Unreadable", "unreadable:X"))
    info = folder / "unreadable_plugin-2.1.dist-info"
    (info / "top_level.txt").write_text("unreadable\n", encoding="utf-8")
    (info / file).write_bytes(b"\xe9")
    done = command_line("run", spec(folder), "--output", "out")
    assert done.returncode == 0, done.stderr
    done = command_line("engines")
    assert done.returncode == 0, done.stderr
    assert "Unreadable" not in done.stdout


def test_engine_of_this_project_runs_beside_another_of_its_name(
    command_line: Any, site: Path
) -> None:
    done = command_line("engines")
    assert "shadow-plugin/Reference" in done.stdout
    done = command_line("run", "builtin:tiny/quickstart", "--limit", "1", "--output", "out")
    assert done.returncode == 0, done.stderr
    results = (site / "out" / "results.json").read_text(encoding="utf-8")
    assert '"distribution": "evalution-reference"' in results


@pytest.mark.parametrize(
    ("engine", "code", "message"),
    [
        ("Raising", 1, "engine 'Raising' of raising-plugin (raising:X) can't be loaded: Runtime"),
        ("Absent", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("Foreign", 2, "engine 'Foreign' of foreign-plugin isn't a BaseEngine, but 3"),
        (
            "Exiting",
            1,
            "engine 'Exiting' of exiting-plugin (exiting:X) can't be loaded: SystemExit",
        ),
    ],
)
def test_a_broken_one_is_named_with_its_cause(
    command_line: Any, site: Path, engine: str, code: int, message: str
) -> None:
    done = command_line("run", write_spec(site, engine))
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_suite_beside_the_spec_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("class Suite: ...\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_suite("beside:Suite")
    assert str(caught.value) == (
        "suite 'beside:Suite' (beside:Suite) can't be loaded: ModuleNotFoundError: No module named "
        "'beside'"
    )
    assert caught.value.__notes__ == [
        "beside.py is in the working folder, which `python -m evalution` looks into"
    ]


def test_an_engine_beside_the_spec_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lying_beside.py").write_text("class Engine: ...\n", encoding="utf-8")
    with pytest.raises(UnknownEngineError, match="No module named 'lying_beside'") as caught:
        parse_engine("lying_beside:Engine")
    assert caught.value.__notes__ == [
        "lying_beside.py is in the working folder, which `python -m evalution` looks into"
    ]
    with pytest.raises(UnknownEngineError) as caught:
        parse_engine("lying_nowhere:Engine")
    assert not getattr(caught.value, "__notes__", ())


def test_an_engine_that_lacks_its_runtime_gets_no_advice_on_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacking.py").write_text("import a_runtime_that_is_missing\n", encoding="utf-8")
    with pytest.raises(EngineUnavailableError, match="a_runtime_that_is_missing") as caught:
        parse_engine("lacking:Engine")
    assert not getattr(caught.value, "__notes__", ())


SUITE_FILE = """
from __future__ import annotations
from dataclasses import dataclass
from pathlib import Path
from evalution.suites import GenerationSuite
from evalution.suites.row_suite import LocalRows

Path(__file__).with_suffix(".ran").touch()

@dataclass(kw_only=True)
class Riddles(LocalRows, GenerationSuite):
    def question_text(self, row):
        return row.text("q")

    def answer_text(self, row):
        return row.text("a")
"""


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    file = tmp_path / "json.py"  # the name of a module that everybody has imported
    file.write_text(SUITE_FILE, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"q": "1 + 1?", "a": "2"}\n', encoding="utf-8")
    (tmp_path / "s.yaml").write_text(
        'engine: "evalution_enginekit.mock:Mock"\nmodel: m\n'
        "tests: [{type: json.py:Riddles, data: rows.jsonl}]\n",
        encoding="utf-8",
    )
    return file


def test_a_suite_in_a_file_beside_the_spec_runs_on_request(
    suite_file: Path, command_line: Any
) -> None:
    refused = command_line("validate", str(suite_file.with_name("s.yaml")))
    assert refused.returncode == 2
    assert "json.py:Riddles is code, which could do whatever you can" in refused.stderr
    assert "add --allow-code to the command" in refused.stderr
    assert not suite_file.with_suffix(".ran").exists()
    done = command_line("run", str(suite_file.with_name("s.yaml")), "--allow-code", "--output", "r")
    assert (done.returncode, suite_file.with_suffix(".ran").exists()) == (0, True)
    assert "json" in sys.modules
    assert sys.modules["json"] is json
    again = command_line("validate", str(suite_file.with_name("s.yaml")))
    assert again.returncode == 2
    shown = command_line("suites", f"{suite_file}:Riddles", "--allow-code")
    assert "options of Riddles" in shown.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jsn.py:Riddles", r"there is no file .*jsn\.py; did you mean 'json\.py'\?"),
        (
            "json.py:Riddle",
            r"holds no suite 'Riddle'; did you mean 'Riddles'\? \(suites: Riddles\)",
        ),
        ("broken.py:X", r"broken\.py can't be imported: SyntaxError: "),
    ],
)
def test_a_file_without_the_suite_is_said(suite_file: Path, name: str, message: str) -> None:
    suite_file.with_name("broken.py").write_text("class", encoding="utf-8")
    with allow_code(), pytest.raises(ConfigurationError, match=message):
        load_suite(name, suite_file.parent)


def test_a_module_beside_the_spec_is_to_be_named_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "riddles.py").touch()
    with pytest.raises(ConfigurationError) as caught:
        load_suite("riddles:Riddles", tmp_path)
    assert caught.value.__notes__ == [
        "riddles.py lies beside the spec; name it as a file: type: riddles.py:Riddles"
    ]
