"""A vendor's engine, written on core alone and packaged outside this repository, just works.

The package holds the engine of the author's guide (`docs/examples/my_engine.py`) and the Engine
Guide's skeleton. It is built to a wheel and installed with wheels of core and the runner into an
environment that has nothing else.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "docs" / "examples" / "my_engine.py"
SKELETON = ROOT / "packages" / "evalution-core" / "tests" / "data" / "guide_skeleton.py"

PROJECT = """\
[project]
name = "acme-pairs"
version = "3.1.0"
requires-python = ">=3.11"
dependencies = ["evalution-core>=1.0,<2"]

[project.entry-points."evalution.engines"]
AcmePairs = "acme_pairs.engine:MyEngine"
AcmeSkeleton = "acme_pairs.skeleton:MyEngine"

[build-system]
requires = ["uv_build>=0.9,<0.14"]
build-backend = "uv_build"
"""

CORPUS = "the cat sat on the mat.\nthe cat ate the rat.\n" * 20

SPEC = """\
model:
  path: {corpus}
engine:
  type: acme-pairs
  smoothing: 0.001
tests:
  - type: multiple_choice
    name: endings
    data: choices.jsonl
    prompt: start
    choices: endings
    target: answer
    target_delimiter: ""
  - type: generation
    name: completions
    data: choices.jsonl
    prompt: start
    target: word
    target_delimiter: ""
    stop: [" "]
    max_new_tokens: 8
  - type: perplexity
    name: prose
    data: prose.jsonl
    text: text
"""

ROWS = [
    {"start": "th", "endings": ["qx", "e "], "answer": 1, "word": "e"},
    {"start": "a", "endings": ["t ", "zz"], "answer": 0, "word": "t"},
    {"start": "on", "endings": [" t", "##"], "answer": 0, "word": "e"},
]

DESCRIBE = """
import json, pickle, sys
from evalution_core import Model, load_engine
from evalution_core.discovery import available
listed = {
    entry.name: [entry.distribution, entry.version]
    for entry in available()
    if entry.distribution != "evalution-runner"
}
imported_by_listing = sorted(name for name in sys.modules if name.startswith("acme_pairs"))
engine = load_engine("acme_skeleton")(device="cpu")
session = engine.build(Model("anything"))
print(json.dumps({
    "listed": listed,
    "imported_by_listing": imported_by_listing,
    "pickles": pickle.loads(pickle.dumps(engine)) == engine,
    "options": engine.to_dict(),
    "schema": sorted(engine.options_schema()["properties"]),
    "execution": session.describe_execution(),
}))
"""


@pytest.fixture(scope="module")
def vendor_python(
    tmp_path_factory: pytest.TempPathFactory,
    uv: Callable[..., str],
    member_wheels: Path,
    empty_environment: Callable[..., Path],
) -> Path:
    """The interpreter of an environment with core, the runner and the vendor's package alone."""
    project = tmp_path_factory.mktemp("acme-pairs")
    package = project / "src" / "acme_pairs"
    package.mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "engine.py").write_bytes(ENGINE.read_bytes())
    (package / "skeleton.py").write_bytes(SKELETON.read_bytes())
    uv("build", "--wheel", "--quiet", "--out-dir", project / "dist", project)
    (wheel,) = (project / "dist").glob("*.whl")
    return empty_environment("evalution-runner", wheels=[wheel], find_links=member_wheels)


def run(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [program, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def evalution(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command that the environment's `evalution` wheel brings."""
    return run(python.with_name("evalution"), *arguments, cwd=cwd)


def evaluate(python: Path, folder: Path, spec: str) -> subprocess.CompletedProcess[str]:
    """Run `evalution run` on a spec in `folder`, with the rows beside it."""
    (folder / "corpus.txt").write_text(CORPUS, encoding="utf-8")
    rows = "".join(json.dumps(row) + "\n" for row in ROWS)
    (folder / "choices.jsonl").write_text(rows, encoding="utf-8")
    (folder / "prose.jsonl").write_text('{"text": "the cat sat."}\n', encoding="utf-8")
    (folder / "spec.yaml").write_text(spec, encoding="utf-8")
    return evalution(python, "run", "spec.yaml", "--output", "out", cwd=folder)


def test_skeleton_of_the_guide_is_discovered_and_pickled(
    vendor_python: Path, tmp_path: Path
) -> None:
    done = run(vendor_python, "-c", DESCRIBE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "listed": {
            "AcmePairs": ["acme-pairs", "3.1.0"],
            "AcmeSkeleton": ["acme-pairs", "3.1.0"],
        },
        "imported_by_listing": [],
        "pickles": True,
        "options": {"device": "cpu"},
        "schema": ["device"],
        "execution": {"backend": "my_engine", "device": "cpu"},
    }


def test_command_line_lists_the_vendors_engines(vendor_python: Path, tmp_path: Path) -> None:
    done = evalution(vendor_python, "engines", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "AcmePairs" in done.stdout
    assert "acme-pairs" in done.stdout


def test_suites_run_on_the_vendors_engine_by_name_from_yaml(
    vendor_python: Path, tmp_path: Path
) -> None:
    done = evaluate(vendor_python, tmp_path, SPEC.format(corpus="corpus.txt"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    endings, completions, prose = results["suites"]
    assert endings["metrics"]["acc"]["value"] == 1.0
    assert completions["metrics"]["exact_match"]["value"] == pytest.approx(1 / 3)
    assert prose["metrics"]["bits_per_byte"]["value"] < 8
    engine = {key: results["engine"][key] for key in ("name", "distribution", "version", "options")}
    assert engine == {
        "name": "AcmePairs",
        "distribution": "acme-pairs",
        "version": "3.1.0",
        "options": {"smoothing": 0.001},
    }
    lines = (tmp_path / "out" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 * len(ROWS) + 1


def test_misspelt_option_of_the_vendors_engine_is_refused_without_a_traceback(
    vendor_python: Path, tmp_path: Path
) -> None:
    spec = SPEC.format(corpus="corpus.txt").replace("smoothing", "smothing")
    done = evaluate(vendor_python, tmp_path, spec)
    assert done.returncode == 2
    assert "has no option 'smothing'; did you mean 'smoothing'?" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
