"""The stages of tools/gpu go on where they were cut off, and their figures reach the tables."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu import bundle, goals, llama_sources, stages, steps, tables  # noqa: E402


def make_step(name: str, code: str, **more: Any) -> steps.Step:
    return steps.Step(name, [sys.executable, "-S", "-c", code], **more)


def run(found: list[steps.Step], work: Path, limit: float = 60) -> tuple[list[str], list[str]]:
    return steps.run_steps(found, steps.Record(work, "stage"), work, limit, {})


def test_passed_step_is_not_repeated_and_failed_one_is(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    note = f"open({str(marks)!r}, 'a').write"
    good, bad = (
        make_step("good", f"{note}('g')"),
        make_step("bad", f"{note}('b'); raise SystemExit(1)"),
    )
    lacking = make_step("lacking", f"{note}('l'); raise SystemExit({steps.UNAVAILABLE})")
    assert run([good, bad, lacking], tmp_path) == (["bad"], [])
    assert run([good, bad, lacking], tmp_path) == (["bad"], [])
    assert marks.read_text("utf-8") == "gblb"


def test_step_is_repeated_when_what_it_made_is_gone(tmp_path: Path) -> None:
    made = tmp_path / "made"
    step = make_step("make", f"open({str(made)!r}, 'a')", makes=made)
    run([step], tmp_path)
    made.unlink()
    run([step], tmp_path)
    assert made.exists()


def test_step_over_its_time_is_killed_and_the_record_says_so(tmp_path: Path) -> None:
    slow = make_step("slow", "import time; print('begun', flush=True); time.sleep(99)", seconds=0.3)  # pyright: ignore[reportArgumentType]
    assert run([slow], tmp_path) == (["slow"], [])
    attempt = steps.Record(tmp_path, "stage").read()["slow"]
    assert (attempt["outcome"], attempt["end"]) == ("timed out", "begun")


def test_steps_beyond_the_limit_are_left_and_a_cut_line_is_no_attempt(tmp_path: Path) -> None:
    assert run([make_step("any", "")], tmp_path, limit=-1) == ([], ["any"])
    (tmp_path / "stage.jsonl").write_text('{"step": "any", "outc', "utf-8")
    assert steps.Record(tmp_path, "stage").read() == {}


def test_results_reach_the_goals() -> None:
    speed = {"ratio": 12.5, "unique": 1e6, "seconds": 20.0, "forwarded": 1e6}
    records: list[dict[str, Any]] = [
        {"stage": "speed", "step": "scoring 7b mmlu", "outcome": "passed", "result": [speed]},
        {
            "stage": "prepare",
            "step": "machine",
            "outcome": "passed",
            "result": {"peak_flops": 1e15, "measured_flops": 8e14, "measured_bandwidth": 3e12},
        },
    ]
    printed = "\n".join(goals.list_goals(records))
    # 32 layers of 4 x 4,096² + 3 x 4,096 x 11,008 weights; twice that for 1e6 tokens in 20 s.
    assert "scoring 7b: 81.0% of the FLOP/s" in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("scoring 7b mmlu"))
    assert line.split()[-3:] == ["10x", "12.5x", "met"]
    (line,) = (line for line in printed.splitlines() if "share of the card's peak" in line)
    assert line.split()[-2:] == ["0.648", "met"]
    records[0]["result"] = [{**speed, "ratio": 9.9}]
    assert "9.9x  missed" in "\n".join(goals.list_goals(records))


def test_tables_in_the_documents_are_current() -> None:
    for file, text in tables.render().items():
        assert file.read_text("utf-8") == text, "run `python -m tools.gpu.tables`"


def test_conformance_runs_every_class_that_is_there() -> None:
    file = ROOT / "packages/evalution-transformers/tests/test_gpu_conformance.py"
    classes = [line for line in file.read_text("utf-8").splitlines() if line.startswith("class ")]
    names = [line.removeprefix("class ").partition("(")[0] for line in classes]
    assert names == list(stages.TRANSFORMERS_CLASSES)


@pytest.mark.parametrize(
    ("name", "is_needed"),
    [
        ("llama_cpp/llama.py", True),
        ("vendor/llama.cpp/src/llama.cpp", True),
        ("vendor/llama.cpp/ggml/src/ggml.c", True),
        ("vendor/llama.cpp/ggml/src/ggml-cuda/mmq.cu", True),
        ("vendor/llama.cpp/ggml/src/ggml-vulkan/ggml-vulkan.cpp", False),
        ("vendor/llama.cpp/tools/ui/src/app.html", False),
        ("tests/test_llama.py", False),
    ],
)
def test_sources_of_llama_cpp_are_cut_to_cpu_and_cuda(name: str, is_needed: bool) -> None:
    assert llama_sources.is_needed(name) == is_needed


def test_bundle_is_split_below_its_limit_and_unpacked_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    for at in range(6):
        (tree / "site").mkdir(parents=True, exist_ok=True)
        (tree / "site" / f"{at}.py").write_text("x = 1\n", "utf-8")
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 500)
    archives = bundle.pack(tree, tmp_path)
    assert max(archive.stat().st_size for archive in archives) <= 500
    bundle.unpack(tmp_path, tmp_path / "there")
    assert len(list((tmp_path / "there" / "site").iterdir())) == 6
    names = [name for archive in archives for name in zipfile.ZipFile(archive).namelist()]
    assert len(archives) > 1
    assert names == [f"site/{at}.py" for at in range(6)]
    with pytest.raises(SystemExit, match=r"has no bundle-1\.zip; make it by"):
        bundle.unpack(tree, tmp_path)


def test_module_for_another_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cpython-311-x86_64-linux-gnu.so").touch()
    bundle.check_extensions(tmp_path, "3.11")
    with pytest.raises(SystemExit, match=r"not for Python 3\.12: a\.cpython-311"):
        bundle.check_extensions(tmp_path, "3.12")
