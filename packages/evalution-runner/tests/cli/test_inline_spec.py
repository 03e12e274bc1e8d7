"""`evalution run SUITE --model PATH`: its words, the YAML they stand for, and mistakes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalution.cli import program
from evalution.cli.inline_spec import InlineSpec, make_document
from evalution.hints import OPTION_HINTS, SUITE_ALIASES
from evalution.suites.discovery import available_suites, load_suite
from evalution_core.options import option_fields

SCENE = {
    "ctx_a": "A man opens a door.",
    "ctx_b": "he",
    "activity_label": "Home",
    "endings": ["leaves.", "flies.", "sings.", "melts."],
    "label": 0,
}


@pytest.fixture
def scenes(folder: Path) -> str:
    """A file with three rows of HellaSwag."""
    (folder / "scenes.jsonl").write_text(3 * (json.dumps(SCENE) + "\n"), encoding="utf-8")
    return "hellaswag.data=scenes.jsonl"


def read_scores(folder: Path) -> Any:
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return [(suite["name"], suite["n"], suite["metrics"]) for suite in found["suites"]]


def test_line_and_the_yaml_that_it_prints_run_to_the_same_result(
    command_line: Any, folder: Path, scenes: str
) -> None:
    rows = ("--set", "rows.prompt={question}", "--set", "rows.choices=choices")
    words = ("run", "hellaswag", "rows.jsonl", "-m", "builtin:tiny", "-n", "2", "-s", scenes)
    words = (*words, *rows, "-s", "rows.target=right", "-s", "engine.dtype=float32")
    ran = command_line(*words, "--output", "line")
    assert ran.returncode == 0, ran.stderr
    chosen = "engine Reference: builtin:tiny is the model of a package; --engine NAME takes another"
    assert ran.stderr.splitlines()[0] == chosen
    printed = command_line(*words, "--print-spec")
    assert yaml.safe_load(printed.stdout) == {
        "engine": {"type": "Reference", "dtype": "float32"},
        "model": {"path": "builtin:tiny"},
        "tests": [
            {"type": "hellaswag", "data": "scenes.jsonl", "max_rows": 2},
            {
                "type": "multiple_choice",
                "name": "rows",
                "data": "rows.jsonl",
                "prompt": "{question}",
                "choices": "choices",
                "target": "right",
                "max_rows": 2,
            },
        ],
    }
    (folder / "printed.yaml").write_text(printed.stdout, encoding="utf-8")
    assert command_line("printed.yaml", "-q", "--output", "spec").returncode == 0
    assert read_scores(folder / "line") == read_scores(folder / "spec")
    assert [suite[:2] for suite in read_scores(folder / "line")] == [("hellaswag", 2), ("rows", 2)]


def test_settings_go_over_those_of_a_spec(command_line: Any, folder: Path, spec: Any) -> None:
    (folder / "sub").mkdir()
    (folder / "rows.jsonl").rename(folder / "sub" / "rows.jsonl")
    (folder / "weights").mkdir()
    spec(folder / "sub", rest="max_failures: 0\n")
    words = ("sub/spec.yaml", "--model", "weights", "-s", "generation.max_new_tokens=3")
    words = (*words, "-s", "rows.max_rows=4", "-s", "isolate=false", "-n", "6", "--print-spec")
    done = command_line("run", *words)
    found = yaml.safe_load(done.stdout)
    assert found["model"] == {"path": str(folder / "weights")}
    assert (found["max_failures"], found["isolate"]) == (0, False)
    (test,) = found["tests"]
    assert (test["max_new_tokens"], test["max_rows"]) == (3, 4)


def test_setting_is_for_all_tests_of_its_name(command_line: Any, folder: Path) -> None:
    rows = (folder / "rows.jsonl").read_text(encoding="utf-8")
    (folder / "other").mkdir()
    for path in ("other/rows.jsonl", "a.b.jsonl"):
        (folder / path).write_text(rows, encoding="utf-8")
    targets = ("rows.jsonl", "other/rows.jsonl", "a.b.jsonl")
    settings = {
        "generation.max_new_tokens": 3,
        "generation.target": "answer",
        "rows.prompt": "question",
        "rows-2.max_rows": 2,
        "a.b.prompt": "answer",
    }
    words = [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]
    done = command_line("run", *targets, "-m", "builtin:tiny", *words, "--print-spec")
    assert done.returncode == 0, done.stderr
    shown = ("prompt", "max_new_tokens", "max_rows")
    assert [
        tuple(test.get(name) for name in shown) for test in yaml.safe_load(done.stdout)["tests"]
    ] == [("question", 3, None), ("question", 3, 2), ("answer", 3, None)]
    done = command_line("run", *targets, "-m", "builtin:tiny", "-s", "row.prompt=q")
    assert "this run has no 'row'; did you mean 'rows'?" in done.stderr


@pytest.mark.parametrize(
    ("targets", "settings", "kinds"),
    [
        (("a.csv", "b.csv"), ("a.prompt=q", "b.choices=c"), ("generation", "multiple_choice")),
        (("a.csv", "b.csv"), ("a.text=t", "b.prompt=q"), ("perplexity", "generation")),
        (("a.csv", "b.csv"), ("a.text=t", "B.choices=c"), ("perplexity", "multiple_choice")),
        (("a.csv", "b.csv"), ("multiple_choice.choices=c",), ("multiple_choice",) * 2),
        (("a.csv", "o/a.csv"), ("a-2.choices=c",), ("generation", "multiple_choice")),
        (("a.csv", "o/a.csv"), ("a.choices=c",), ("multiple_choice",) * 2),
        (("a.csv", "a.b.csv"), ("a.choices=c",), ("multiple_choice", "generation")),
        (("a.csv", "a.b.csv"), ("a.b.text=t",), ("generation", "perplexity")),
        (("a.csv", "hellaswag"), ("hellaswag.choices=c",), ("generation", "hellaswag")),
    ],
)
def test_kind_of_a_file_is_by_what_is_set_for_it(
    targets: Sequence[str], settings: Sequence[str], kinds: Sequence[str]
) -> None:
    tests = make_document(InlineSpec(targets, "m", "Reference", settings)).content["tests"]
    assert tuple(test["type"] for test in tests) == kinds
    for test in tests:
        allowed = {"generation": {"prompt"}, "perplexity": {"text"}}.get(test["type"], {"choices"})
        assert test.keys() - {"type", "name", "data"} <= allowed


def test_files_of_two_kinds_run_on_one_line(command_line: Any, folder: Path) -> None:
    (folder / "mc.jsonl").write_text((folder / "rows.jsonl").read_text("utf-8"), "utf-8")
    settings = ("rows.prompt=question", "rows.target=answer", "mc.prompt=question")
    settings = (*settings, "mc.choices=choices", "mc.target=right")
    words = [word for setting in settings for word in ("-s", setting)]
    done = command_line("run", "rows.jsonl", "mc.jsonl", *TINY, "-n", "1", *words, "--output", "o")
    assert done.returncode == 0, done.stderr
    assert [suite[0] for suite in read_scores(folder / "o")] == ["rows", "mc"]


def test_spec_printed_in_another_folder_says_where_it_belongs(
    command_line: Any, folder: Path, spec: Any
) -> None:
    (folder / "sub").mkdir()
    (folder / "rows.jsonl").rename(folder / "sub" / "rows.jsonl")
    spec(folder / "sub")
    (folder / "linked.yaml").symlink_to(folder / "sub" / "spec.yaml")
    place = (folder / "sub").resolve()
    remark = f"relative paths in this spec start from {place}; save it in that folder\n"
    for path, told in {
        "sub/spec.yaml": remark,
        "linked.yaml": remark,
        f"{folder}/sub/../top.yaml": "",
        "builtin:tiny/quickstart": "",
    }.items():
        (folder / "top.yaml").write_text((folder / "sub" / "spec.yaml").read_text(), "utf-8")
        done = command_line("run", path, "-n", "5", "--print-spec")
        assert (done.returncode, done.stderr) == (0, told)
        assert yaml.safe_load(done.stdout)["tests"][0]["max_rows"] == 5
    assert command_line("run", "sub/spec.yaml", "-q", "--print-spec").stderr == ""


def test_hint_names_the_test_that_lacks_something(command_line: Any, folder: Path) -> None:
    (folder / "b.jsonl").write_text('{"q": "1", "a": "2"}\n', encoding="utf-8")
    words = ("-s", "rows.prompt=question", "-s", "rows.target=answer")
    done = command_line("run", "rows.jsonl", "b.jsonl", "-m", "builtin:tiny", *words)
    assert "hint: --set b.prompt=" in done.stderr


def test_hint_names_a_suite_whose_rows_are_a_setting(command_line: Any, folder: Path) -> None:
    (folder / "b.csv").write_text("question,answer\n1 + 1,2\n", encoding="utf-8")
    words = ("generation", *TINY, "--set", "generation.data=b.csv")
    done = command_line("run", *words)
    hint = "--set generation.prompt=question --set generation.target=answer"
    assert f"hint: {hint}\n" in done.stderr
    done = command_line("run", *words, *hint.split(), "--print-spec")
    assert yaml.safe_load(done.stdout)["tests"][0]["prompt"] == "question"


def test_kind_that_is_guessed_is_said_with_the_settings_of_others(
    command_line: Any, folder: Path
) -> None:
    words = ("run", "rows.jsonl", *TINY)
    settings = ("-s", "rows.prompt=question", "-s", "rows.target=answer", "--print-spec")
    said = (
        "rows is run as a generation; --set rows.choices=COLUMN makes it multiple choice, "
        "--set rows.text=COLUMN perplexity\n"
    )
    assert command_line(*words, *settings).stderr.endswith(said)
    assert f"hint: {said}" in command_line(*words, "-s", "rows.prompt=question").stderr
    for setting in ("rows.choices=choices", 'rows.metrics=["f1"]'):
        done = command_line(*words, *settings, "-s", setting)
        assert (done.returncode, "is run as" in done.stderr) == (0, False)


def test_list_that_is_no_json_gets_a_hint(command_line: Any) -> None:
    words = ("run", "rows.jsonl", *TINY, "-s", "rows.prompt=[Q] {question} [A]")
    words = (*words, "-s", "rows.target=answer", "-s", "rows.metrics=[number, f1]")
    (hint,) = [line for line in command_line(*words).stderr.splitlines() if "hint" in line]
    form = """--set 'rows.metrics=["number", "f1"]'"""
    assert hint == f"hint: a list is JSON, its texts in double quotes: {form}"


@pytest.mark.parametrize("name", ["model", "engine"])
def test_hint_for_rows_named_like_a_section_names_the_rows(
    command_line: Any, folder: Path, name: str
) -> None:
    (folder / f"{name}.csv").write_text("question,answer\n1 + 1,2\n", encoding="utf-8")
    done = command_line("run", f"{name}.csv", *TINY)
    hint = f"--set {name}-2.prompt=question --set {name}-2.target=answer"
    assert f"hint: {hint}\n" in done.stderr
    done = command_line("run", f"{name}.csv", *TINY, *hint.split(), "--print-spec")
    assert yaml.safe_load(done.stdout)["tests"][0]["prompt"] == "question"


def test_a_suite_is_itself_beside_a_folder_or_file_of_its_name(
    command_line: Any, folder: Path, assert_says: Any
) -> None:
    (folder / "piqa").mkdir()
    (folder / "arc_easy").write_text("", encoding="utf-8")
    for name in ("piqa", "arc_easy", "Arc-Easy"):
        done = command_line("run", name, *TINY, "--print-spec")
        assert yaml.safe_load(done.stdout)["tests"] == [{"type": name}], done.stderr
    assert_says(command_line("run", "./piqa"), 2, "piqa is a folder; name the spec file in it")


def test_unfinished_line_prints_the_line_that_resumes_it(
    command_line: Any, folder: Path, scenes: str
) -> None:
    (folder / "dying_line.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_core import EngineRuntimeError\n"
        "from evalution_enginekit.mock import Mock, MockSession\n"
        "@dataclass(slots=True)\n"
        "class Dying(Mock):\n"
        "    def build(self, model):\n"
        "        return DyingSession('m', 512, 8)\n"
        "class DyingSession(MockSession):\n"
        "    def loglikelihood_continuous(self, requests, *, batch_size=None):\n"
        "        raise EngineRuntimeError('the runtime died')\n"
    )
    words = ["hellaswag", "--model", "m", "--engine", "dying_line:Dying", "--set", scenes]
    done = command_line("run", *words, "--output", "out")
    assert done.returncode == 1
    assert f"to resume: evalution run {' '.join(words)} --output out\n" in done.stdout


LM_EVAL = "any task of lm-eval is one too: {type: lm_eval, tasks: NAME} in a spec, lm_eval/NAME"
TINY = ("--model", "builtin:tiny")
MISTAKES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "nothing": ([], ["name a suite or a spec", "evalution run hellaswag --model PATH"]),
    "no model": (["hellaswag"], ["name the model: --model PATH", "builtin:tiny"]),
    "an address without its scheme": (
        ["hellaswag", "--model", "localhost:8000"],
        ["a server's address begins with http://: --model http://localhost:8000"],
    ),
    "a misspelt suite": (["hellaswg", *TINY], ["'hellaswg'", "did you mean 'hellaswag'?"]),
    "a suite by another name": (["arc-c", *TINY], ["'arc-c'", "did you mean 'arc_challenge'?"]),
    "a suite of lm-eval": (["toxigen_like_task", *TINY], ["toxigen_like_task", LM_EVAL]),
    "a spec among suites": (["a.yaml", "piqa"], ["a.yaml is a spec, which stands alone"]),
    "an engine that is missing": (
        ["piqa", *TINY, "-e", "tensorrt_llm"],
        ["no engine 'tensorrt_llm' is installed", "pip install evalution-tensorrt-llm"],
    ),
    "an engine by another name": (
        ["piqa", *TINY, "-e", "hf"],
        ["no engine 'hf' is installed", "Transformers"],
    ),
    "an engine as a model": (
        ["piqa", "--model", "hf"],
        ["--model hf names an engine", "--engine Transformers --model PATH"],
    ),
    "a server as a model": (
        ["piqa", "--model", "ollama"],
        ["--engine OpenAICompatible --set engine.base_url=http://127.0.0.1:11434 --model PATH"],
    ),
    "a setting without a value": (["piqa", *TINY, "-s", "x"], ["--set x is not KEY=VALUE"]),
    "a setting without a place": (
        ["piqa", *TINY, "-s", "num_fewshot=3"],
        ["doesn't say where num_fewshot belongs", "SUITE.OPTION=VALUE", "isolate"],
    ),
    "a model as a setting": (
        ["piqa", *TINY, "-s", "model=other"],
        ["--set model=other: write --model other"],
    ),
    "a setting of another suite": (
        ["piqa", *TINY, "-s", "pika.num_fewshot=3"],
        ["this run has no 'pika'", "did you mean 'piqa'?", "(it has: engine, model, piqa)"],
    ),
    "a misspelt setting": (
        ["piqa", *TINY, "-s", "piqa.fewshot=3"],
        ["suite PIQA has no option 'fewshot'", "did you mean 'num_fewshot'?"],
    ),
    "a setting inside of a number": (
        ["piqa", *TINY, "-s", "engine.dtype=1", "-s", "engine.dtype.x=1"],
        ["--set engine.dtype.x=1: dtype holds no options"],
    ),
    "an engine that can't score": (
        ["piqa", "-m", "m", "-e", "mute:Mute", "-s", "piqa.data=rows.jsonl"],
        ["suite 'piqa' needs loglikelihood"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_a_line_is_one_sentence(
    command_line: Any, assert_says: Any, folder: Path, mistake: str
) -> None:
    (folder / "mute.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_core import Capability\n"
        "from evalution_enginekit.mock import Mock\n"
        "@dataclass(slots=True)\n"
        "class Mute(Mock):\n"
        "    capabilities = frozenset({Capability.GENERATE})\n"
    )
    words, parts = MISTAKES[mistake]
    done = command_line("run", *words)
    for part in parts:
        assert_says(done, 2, part)
    assert not (folder / "runs").exists()


def test_spec_may_be_json(command_line: Any, assert_says: Any, tmp_path: Path) -> None:
    spec = tmp_path / "run.json"
    spec.write_text(
        '{"engine": "Reference", "model": "builtin:tiny", "tests": ["nosuch"]}', "utf-8"
    )
    assert_says(command_line("run", "run.json"), 2, "no suite 'nosuch' is installed")


def test_rows_without_their_options_get_a_hint(
    command_line: Any, assert_says: Any, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    for columns, found in (("xy", ("COLUMN", "COLUMN")), (("Question", "Answer"),) * 2):
        rows.write_text(json.dumps(dict(zip(columns, ("1 + 1", "2"), strict=True))))
        done = command_line("run", str(rows), *TINY)
        assert_says(done, 2, "suite Generation needs the option")
        assert "hint: --set rows.prompt={} --set rows.target={}\n".format(*found) in done.stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--model", "hf", "--tasks", "piqa"], "there is no option --tasks: suites stand alone"),
        (["--model_args=pretrained=x"], "there is no option --model_args: --model PATH names the"),
        (["piqa", "--num_fewshot", "5"], "write --set SUITE.num_fewshot=5"),
        (["piqa", "-o", "base_url=x"], "--output FOLDER, or --set engine.KEY=VALUE for an option"),
        (["piqa", "--gen_kwargs", "temperature=1"], "decoding is greedy, only humaneval and mbpp"),
        (["piqa", "--seed", "7"], "write --set SUITE.fewshot_seed=1234"),
        (["piqa", "--write_out"], "`evalution show RUN --samples SUITE` shows prompts"),
        (["piqa", "--system_instruction", "x"], "write --set TASK.system_instruction=TEXT"),
        (["piqa", "--fewshot_as_multiturn"], "turns wherever SUITE.apply_chat_template is true"),
        (["piqa", "--predict_only"], "nothing does the same: answers are always scored"),
    ],
)
def test_option_of_another_program_gets_the_one_that_does_the_same(
    command_line: Any, words: list[str], advice: str
) -> None:
    done = command_line("run", *words)
    assert done.returncode == 2
    assert advice in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("value", "message"),
    [("-5", "must be at least 1, got '-5'"), ("0.1", "must be a whole number of rows, got '0.1'")],
)
def test_wrong_limit_is_shown(command_line: Any, value: str, message: str) -> None:
    done = command_line("run", "builtin:tiny/quickstart", "-n", value)
    assert (done.returncode, message in done.stderr) == (2, True)


def test_no_option_that_a_command_has_is_said_to_be_missing() -> None:
    for verb, advice in OPTION_HINTS.items():
        if verb not in program.COMMANDS:  # of another package, which may be missing
            continue
        command = program.load_command(verb)
        assert not advice.keys() & {word for option in command.params for word in option.opts}
    assert set(SUITE_ALIASES.values()) <= set(available_suites())


def test_suites_that_sample_are_those_that_the_hint_names() -> None:
    found = {
        name
        for name in available_suites()
        if name != "lm_eval"
        and "temperature" in {option.name for option in option_fields(load_suite(name))}
    }
    named = set(re.findall(r"[a-z_]+", OPTION_HINTS["run"]["--gen_kwargs"]))
    assert {name.partition("_")[0] for name in found} == {"humaneval", "mbpp"} <= named


@pytest.mark.parametrize("verb", [verb for verb in program.COMMANDS if verb != "fidelity"])
def test_help_names_no_type_of_python(command_line: Any, verb: str) -> None:
    assert not re.search("<(int|str|list|float|path)", command_line(verb, "-h").stdout)
