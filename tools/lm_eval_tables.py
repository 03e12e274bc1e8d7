"""Numbers of one model, row by row: by lm-eval's `hf`, by lm-eval on our server, and by our runner.

    .venv-clients/bin/python tools/lm_eval_tables.py

lm-eval runs on the server by the commands of docs/serving.md; tasks, address and the folder of the
tables are put in. It prints the three tables, and ends with 1 if they differ.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import patch

import evalution
from evalution import suites
from evalution.rows.local import Rows
from evalution_core import Model, load_engine
from evalution_core.builtins import builtin_path

ROOT = Path(__file__).parents[1]
ROWS = 24
TOLERANCE = 1e-4
"""Nats of a whole choice or text; float32 on both sides."""
MODEL = "builtin:tiny"
PROMPT = "Question: {question}\nAnswer:"
ASKED = "Question: {{question}}\nAnswer:"
STOP, MOST_TOKENS = "\n", 24


@dataclass(frozen=True)
class Kind:
    """A kind of task: its rows, and the task of lm-eval on them."""

    rows: str
    task: Mapping[str, Any]
    scores_whole_texts: bool = False
    is_chat: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether lm-eval is to add BOS."""
        return not (self.scores_whole_texts or self.is_chat)


GENERATION = {
    "output_type": "generate_until",
    "doc_to_text": ASKED,
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": [STOP], "max_gen_toks": MOST_TOKENS, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}
KINDS = {
    "choices": Kind(
        "choices",
        {
            "output_type": "multiple_choice",
            "doc_to_text": ASKED,
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}],
        },
    ),
    "generation": Kind("sums", GENERATION),
    "rolling": Kind(
        "prose",
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}],
        },
        scores_whole_texts=True,
    ),
    "chat": Kind("sums", GENERATION, is_chat=True),
}
Row = list[float] | str
Table = dict[str, list[Row]]
"""By kind, what each row came to: log-probabilities, or a text."""


def make_tables(folder: Path) -> dict[str, Table]:
    """Make the tables of the three ways; `folder` is empty and takes all files."""
    checkpoint = folder / "tiny"
    shutil.copytree(builtin_path(MODEL, "safetensors"), checkpoint)
    write_tasks(folder / "tasks")
    # The environment of lm_eval_commands.py, which takes `run_command` from here, lacks the server.
    from evalution_openai.server import build_openai_compatible_server

    hf = (
        "lm_eval run --model hf --device cpu --tasks x --model_args pretrained=./tiny,dtype=float32"
    )
    engine = load_engine("Reference")()
    with engine.build(Model(MODEL)) as session:
        tables = {"our runner": run_ours(session, folder / "ours")}
        with build_openai_compatible_server(session=session, model_name="tiny") as server:
            with_bos, without = read_commands(server.base_url)
            tables["lm-eval on our server"] = run_lm_eval(folder, with_bos, without, "server")
    tables["lm-eval's hf"] = run_lm_eval(folder, hf, f"{hf},add_bos_token=False", "hf")
    return tables


def write_tasks(folder: Path) -> None:
    """Write the tasks of lm-eval, and the rows that they read."""
    folder.mkdir()
    for name, kind in KINDS.items():
        rows = [dict(row.columns) for row in Rows(builtin_path(MODEL, f"rows/{kind.rows}"))]
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[:ROWS]), encoding="utf-8")
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            **kind.task,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")


def read_commands(base_url: str) -> tuple[str, str]:
    """Read the commands of the page, with and without BOS, for the server at `base_url`."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    found = re.findall(r"^\$ (lm_eval run .*?)\n```", page, re.MULTILINE | re.DOTALL)
    with_bos, without = (
        command.replace("\\\n", "").replace("http://127.0.0.1:8000", base_url) for command in found
    )
    return with_bos, without


def run_lm_eval(folder: Path, with_bos: str, without: str, name: str) -> Table:
    """Run the tasks by two commands of lm-eval, the second one for those that bring BOS."""
    chat = ["--apply_chat_template"]
    groups = [
        (with_bos, [], [name for name, kind in KINDS.items() if kind.is_plain]),
        (without, [], [name for name, kind in KINDS.items() if kind.scores_whole_texts]),
        (without, chat, [name for name, kind in KINDS.items() if kind.is_chat]),
    ]
    table: Table = {}
    for number, (command, more, tasks) in enumerate(groups):
        output = folder / f"{name}{number}"
        words = shlex.split(command)
        words[words.index("--tasks") + 1] = ",".join(tasks)
        words += ["--include_path", "tasks", "--log_samples", "--output_path", str(output), *more]
        run_command(words, folder)
        for task in tasks:
            (samples,) = output.rglob(f"samples_{task}_*.jsonl")
            table[task] = read_lm_eval(samples)
    return table


def run_command(words: Sequence[str], folder: Path) -> None:
    """Run an installed command in this process, which has imported torch: it takes seconds."""
    (command,) = entry_points(group="console_scripts", name=words[0])
    with chdir(folder), patch.object(sys, "argv", list(words)), lm_eval_tasks_read_once():
        command.load()()


@contextmanager
def lm_eval_tasks_read_once() -> Iterator[None]:
    """Have lm-eval read the 13,000 files of its own tasks once a process: that takes seconds."""
    from lm_eval import tasks
    from lm_eval.tasks._index import TaskIndex

    build, own = TaskIndex.build, Path(tasks.__file__).parent

    def build_of_parts(paths: Iterable[Path]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in paths:
            part = _OWN_TASKS if path == own else {}
            if not part:
                part |= build([path])
            found |= part
        return found

    with patch.object(TaskIndex, "build", staticmethod(build_of_parts)):
        yield


_OWN_TASKS: dict[str, Any] = {}


def read_lm_eval(samples: Path) -> list[Row]:
    """Read what each row came to, in the order of the rows."""
    found = sorted(read_lines(samples), key=lambda sample: sample["doc_id"])
    rows: list[Row] = []
    for sample in found:
        answers = [one[0] if isinstance(one, list) else one for one in sample["filtered_resps"]]
        is_text = "until" in json.dumps(sample["arguments"])
        rows.append(answers[0] if is_text else [float(answer) for answer in answers])
    return rows


def run_ours(session: Any, folder: Path) -> Table:
    """Run the suites on the session by our runner."""
    generation: dict[str, Any] = {
        "data": f"{MODEL}/sums",
        "prompt": PROMPT,
        "target": "answer",
        "stop": [STOP],
        "max_new_tokens": MOST_TOKENS,
    }
    tests = [
        suites.MultipleChoice(
            name="choices",
            data=f"{MODEL}/choices",
            prompt=PROMPT,
            choices="choices",
            target="answer",
        ),
        suites.Perplexity(name="rolling", data=f"{MODEL}/prose", text="text"),
        suites.Generation(name="generation", **generation),
        suites.Generation(name="chat", **generation, apply_chat_template=True),
    ]
    evalution.run(session=session, tests=tests, limit=ROWS, output=folder)
    table: Table = {name: [] for name in KINDS}
    for sample in read_lines(folder / "samples.jsonl"):
        extracted = sample["extracted"]
        match sample["suite"]:
            case "choices":
                row = extracted["logprobs"]
            case "rolling":
                row = [extracted["logprob"]]
            case _:
                row = sample["prediction"]
        table[sample["suite"]].append(row)
    return table


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def find_differences(tables: Mapping[str, Table]) -> list[str]:
    """Return a line for each row that isn't the same in all tables."""
    (first, reference), *others = tables.items()
    return [
        f"{kind} {number}: {first} {expected!r}, {name} {row!r}"
        for name, table in others
        for kind in KINDS
        for number, (expected, row) in enumerate(zip(reference[kind], table[kind], strict=True))
        if not is_same(expected, row)
    ]


def is_same(left: Row, right: Row) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    pairs = zip(left, right, strict=True)
    return all(abs(one - other) <= TOLERANCE for one, other in pairs)


def format_table(table: Table) -> Iterable[str]:
    """Format the lines of one table, a row a line."""
    for kind, rows in table.items():
        for number, row in enumerate(rows):
            shown = repr(row) if isinstance(row, str) else " ".join(f"{one:.5f}" for one in row)
            yield f"{kind:10} {number:2}  {shown}"


def main(arguments: Sequence[str]) -> int:
    if arguments:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        tables = make_tables(Path(folder))
    for name, table in tables.items():
        print(f"\n{name}", *format_table(table), sep="\n")
    differences = find_differences(tables)
    print(*differences, sep="\n")
    count = sum(len(rows) for rows in tables["our runner"].values())
    print(f"{count} rows by {len(tables)} ways: {len(differences)} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
