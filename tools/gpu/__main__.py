"""Run stages of measurements on a machine with a GPU: `python -m tools.gpu STAGE`.

    python -m tools.gpu all --bundle FOLDER --work FOLDER --copy FOLDER    what fits into the limit
    python -m tools.gpu STAGE --work FOLDER                                one stage
    python -m tools.gpu all --rehearse --work FOLDER                       tiny, on a CPU

The same command again goes on. Exit status: 0 all steps passed; 1 one failed; 4 the time was up.
The records, `records.jsonl` and `records.log`, are in `records` below the working folder.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.gpu import bundle, stages
from tools.gpu.goals import list_goals
from tools.gpu.steps import Record, Runner

LIMIT_S = 530
TO_GO_ON = 4


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("stage", choices=["all", *stages.STAGES])
    parser.add_argument("--bundle", type=Path, help="the folder that tools.gpu.bundle filled")
    parser.add_argument("--work", type=Path, required=True, help="kept between calls")
    parser.add_argument("--copy", type=Path, help="gets the records after each step")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of this call")
    parser.add_argument("--models", nargs="+", choices=stages.MODELS, default=stages.MODELS)
    parser.add_argument("--fresh", action="store_true", help="empty the working folder before")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on a CPU")
    return parser.parse_args(arguments)


def make_site(places: stages.Places, folder: Path | None) -> dict[str, str]:
    """Unpack the bundle unless it is there; return the variables of all steps."""
    target = places.site.parent
    if folder is not None and not places.site.is_dir():
        part = target.with_name("bundle.part")
        shutil.rmtree(part, ignore_errors=True)
        bundle.unpack(folder, part)
        if not places.rehearse:
            compileall.compile_dir(part / "site", quiet=2, workers=0)
        part.rename(target)
        if (known := folder / "records.jsonl").is_file():
            places.records.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(known, places.records / known.name)
    known_paths = [str(places.site), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in known_paths if path),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1" if places.rehearse else "2",  # steps run side by side
        **({"CUDA_VISIBLE_DEVICES": ""} if places.rehearse else {}),
    }


def run_stages(
    names: Sequence[str], places: stages.Places, runner: Runner, end: float
) -> list[str]:
    """Run stages; return the names of the steps that are left.

    What a stage hasn't done in its share of the time waits for a second round, behind all others.
    """

    def run(name: str, until: float) -> list[str]:
        steps = stages.list_steps(name, places)
        return runner.run(name, steps, until, 1 if places.rehearse else stages.WORKERS.get(name, 1))

    def run_share(name: str) -> list[str]:
        share = end if places.rehearse else stages.SHARES.get(name, end)
        return run(name, min(end, time.monotonic() + share))

    first, *others = names
    left = run(first, end)
    # Figures of a rehearsal mean nothing, so its stages may disturb each other.
    with ThreadPoolExecutor(2 if places.rehearse else 1) as pool:
        rest = dict(zip(others, pool.map(run_share, others), strict=True))
    return left + [step for name, steps in rest.items() if steps for step in run(name, end)]


def main(arguments: Sequence[str] | None = None) -> int:
    start = time.monotonic()
    asked = read_arguments(arguments)
    places = stages.Places(asked.work.resolve(), asked.rehearse, tuple(asked.models))
    if asked.fresh:
        shutil.rmtree(places.work, ignore_errors=True)
    folder = asked.bundle
    if folder is None and asked.rehearse and not places.site.is_dir():
        folder = places.work / "archive"
        bundle.assemble(folder, f"{sys.version_info.major}.{sys.version_info.minor}")
    variables = make_site(places, folder)
    record = Record(places.records, asked.copy)
    names = list(stages.COMMON) if asked.stage == "all" else [asked.stage]
    runner = Runner(record, places.work, variables, is_patient=places.rehearse)
    left = run_stages(names, places, runner, start + asked.limit)
    for line in list_goals(record.read()):
        print(line)
    print(f"{time.monotonic() - start:.0f} s", flush=True)
    if runner.failed:
        print(f"failed: {', '.join(runner.failed)}")
        return 1
    if left:
        print(f"left for the next call: {', '.join(left)}")
        return TO_GO_ON
    return 0


if __name__ == "__main__":
    sys.exit(main())
