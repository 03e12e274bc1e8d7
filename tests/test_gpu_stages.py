"""The stages of tools/gpu go on where they were cut off, and their figures reach the tables."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu import bundle, card, goals, llama_sources, stages, steps, tables  # noqa: E402
from tools.gpu.__main__ import run_stages  # noqa: E402


def make_step(name: str, code: str, **more: Any) -> steps.Step:
    return steps.Step(name, [sys.executable, "-S", "-c", code], **more)


def run(
    found: list[steps.Step], work: Path, limit: float = 60, workers: int = 1
) -> tuple[list[str], list[str]]:
    """Return the names of the steps that failed, and of those that are left."""
    runner = steps.Runner(steps.Record(work, work / "copies"), work, {})
    left = runner.run("stage", found, time.monotonic() + limit, workers)
    return runner.failed, left


def test_passed_step_is_not_repeated_and_failed_one_is_in_the_next_call(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    note = f"open({str(marks)!r}, 'a').write"
    good, bad = (
        make_step("good", f"{note}('g')"),
        make_step("bad", f"{note}('b'); raise SystemExit(1)"),
    )
    lacking = make_step("lacking", f"{note}('l'); raise SystemExit({steps.UNAVAILABLE})")
    assert run([good, bad, bad, lacking], tmp_path) == (["stage/bad"], [])
    assert run([good, bad, lacking], tmp_path) == (["stage/bad"], [])
    assert marks.read_text("utf-8") == "gblb"
    for name in ("records.jsonl", "records.log"):
        assert (tmp_path / "copies" / name).read_text("utf-8") == (tmp_path / name).read_text(
            "utf-8"
        )


def test_step_over_its_time_is_ended_whoever_else_holds_its_output() -> None:
    command = ["sh", "-c", "setsid sleep 300 & echo $!; sleep 300"]
    status, printed = steps.run_limited(command, {}, 0.5)
    assert status is None
    os.kill(int(printed), signal.SIGKILL)  # it is still there


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", card.PEAKS["H100"]),
        ("NVIDIA H100 PCIe", card.PEAKS["H100 PCIe"]),
        ("NVIDIA A100-SXM4-40GB", card.PEAKS["A100 SXM4 40GB"]),
        ("NVIDIA A100-SXM4-80GB", card.PEAKS["A100"]),
        ("NVIDIA L40", None),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_peak_is_that_of_the_card_and_of_no_other(name: str, peak: card.Peak | None) -> None:
    assert card.find_peak(name) == peak


def test_step_is_repeated_when_what_it_made_is_gone(tmp_path: Path) -> None:
    made = tmp_path / "made"
    step = make_step("make", f"open({str(made)!r}, 'a')", makes=made)
    run([step], tmp_path)
    made.unlink()
    run([step], tmp_path)
    assert made.exists()


def test_steps_that_nothing_times_run_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    ends = [make_step(mode, f"open({str(tmp_path / 'pipe')!r}, {mode!r})") for mode in "rw"]
    assert run(ends, tmp_path, workers=2) == ([], [])


def test_step_over_its_time_is_ended_and_what_it_had_is_kept(tmp_path: Path) -> None:
    code = """
import sys, time
open(sys.argv[1], "w").write("[1]")
try:
    time.sleep(99)
except KeyboardInterrupt:
    print("so far")
"""
    command = [sys.executable, "-S", "-c", code, "{result}"]
    assert run([steps.Step("slow", command, 1)], tmp_path) == (["stage/slow"], [])
    (attempt,) = steps.Record(tmp_path).read()
    assert (attempt["outcome"], attempt["end"], attempt["result"]) == ("timed out", "so far", [1])


def test_steps_beyond_the_limit_are_left_and_a_cut_line_is_no_attempt(tmp_path: Path) -> None:
    assert run([make_step("any", "")], tmp_path, limit=-1) == ([], ["stage/any"])
    (tmp_path / "records.jsonl").write_text('{"step": "any", "outc', "utf-8")
    assert steps.Record(tmp_path).read() == []


def test_shapes_that_a_bench_measured_before_it_was_cut_off_stay(tmp_path: Path) -> None:
    def attempt(outcome: str, **ratios: float) -> dict[str, Any]:
        rows = [{"shape": shape, "ratio": ratio} for shape, ratio in ratios.items()]
        name = {"stage": "speed", "step": "scoring 1b"}
        return {**name, "outcome": outcome, "result": rows or None}

    places = stages.Places(tmp_path, rehearse=False)
    record = steps.Record(places.records)
    for one in (attempt("timed out", mmlu=11.0, arc=12.0), attempt("timed out")):
        record.add(one, "")
    attempts = steps.merge_attempts(record.read())
    assert goals.read_ratio("1b", "arc")(attempts) == 12.0
    (step,) = (one for one in stages.list_steps("speed", places) if one.name == "scoring 1b")
    assert step.command[-4:-2] == ["hellaswag", "wikitext"]
    record.add(attempt("passed", arc=13.0), "")
    attempts = steps.merge_attempts(record.read())
    assert [goals.read_ratio("1b", name)(attempts) for name in ("mmlu", "arc")] == [11.0, 13.0]


def test_stage_over_its_share_goes_on_behind_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {name: [make_step("step", "")] for name in ("first", "second", "third")}
    monkeypatch.setattr(stages, "list_steps", lambda name, places: made[name])
    monkeypatch.setattr(stages, "SHARES", {"second": 0})
    places = stages.Places(tmp_path, rehearse=False)
    record = steps.Record(places.records)
    runner = steps.Runner(record, tmp_path, {})
    assert run_stages(list(made), places, runner, time.monotonic() + 60) == []
    assert [one["stage"] for one in record.read()] == ["first", "third", "second"]


def test_results_reach_the_goals() -> None:
    speed = {"shape": "mmlu", "ratio": 12.5, "unique": 1e6, "seconds": 20.0}
    records: list[dict[str, Any]] = [
        {"stage": "speed", "step": "scoring 7b", "outcome": "failed", "result": [speed]},
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


def test_benches_are_asked_for_shapes_and_devices_that_their_files_have(tmp_path: Path) -> None:
    places = stages.Places(tmp_path, rehearse=False)
    for step in [*stages.list_steps("speed", places), *stages.list_steps("llama-cpp", places)]:
        command = list(map(str, step.command))
        if "--config" in command:
            file = Path(command[command.index("--config") + 1])
            config = tomllib.loads(file.read_text("utf-8"))
            known = config.get("cuda", config)["shapes"]
            asked = [word for word in command if word in {"even", "skewed", "gsm8k", *known}]
            assert asked
            assert set(asked) <= set(known), step.name


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


def test_bundle_is_bounded_and_gets_from_the_checkout_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        "site/any.py",
        "site/evalution_reference/data/tiny/model.safetensors",
        "site/lm_eval/tasks/__init__.py",
        "site/lm_eval/tasks/arc/arc.yaml",
    ]
    tree = tmp_path / "tree"
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("", "utf-8")
    archive = bundle.pack(tree, tmp_path)
    with tarfile.open(archive) as packed:
        assert packed.getnames() == [names[0], names[2]]
    bundle.unpack(tmp_path, tmp_path / "there")
    assert (tmp_path / "there" / names[1]).stat().st_size > 1e6
    with pytest.raises(SystemExit, match=r"has no bundle\.tar\.gz; make it by"):
        bundle.unpack(tree, tmp_path)
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 100)
    with pytest.raises(SystemExit, match=r"more than 0 MiB: name in machine\.txt what is there"):
        bundle.pack(tree, tmp_path)


def test_versions_of_the_machine_bind_its_own_python_alone() -> None:
    wanted, names = bundle.read_present(bundle.PYTHON)
    assert {"torch==2.11.0", "numpy==2.5.2"} < set(wanted)
    assert set(bundle.read_present("3.11")[0]) == names


def test_module_for_another_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cpython-311-x86_64-linux-gnu.so").touch()
    bundle.check_extensions(tmp_path, "3.11")
    with pytest.raises(SystemExit, match=r"not for Python 3\.12: a\.cpython-311"):
        bundle.check_extensions(tmp_path, "3.12")


def test_smaller_card_is_given_the_models_that_it_asks_for(tmp_path: Path) -> None:
    places = stages.Places(tmp_path, rehearse=False, models=("1b",))
    names = [step.name for name in stages.COMMON for step in stages.list_steps(name, places)]
    assert any("1b" in name for name in names)
    assert not [name for name in names if "7b" in name]


def test_reports_are_kept_as_what_tables_read() -> None:
    checks = [{"outcome": "passed"}, {"outcome": "refused"}, {"outcome": "passed"}]
    assert tables.shorten({"engines": [{"checks": checks}]}) == {"passed": 2, "refused": 1}
    parity = {"is_within": True, "complaints": [], "tolerance": {}, "notes": [], "suites": [1]}
    assert "suites" not in tables.shorten(parity)
    assert tables.shorten([{"shape": "mmlu"}]) == [{"shape": "mmlu"}]
