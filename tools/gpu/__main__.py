"""Run one stage of measurements on a machine with a GPU: `python -m tools.gpu STAGE`.

    python -m tools.gpu STAGE --bundle FOLDER --work FOLDER    one stage; call again to go on
    python -m tools.gpu all --rehearse --work FOLDER           all stages, tiny, on a CPU

Exit status: 0 all steps passed; 1 one failed; 4 the time was up, and a further call goes on. The
records, `STAGE.jsonl` and `STAGE.log`, are in `records` below the working folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.gpu import bundle, stages
from tools.gpu.goals import list_goals
from tools.gpu.steps import Record, read_records, run_steps

LIMIT_S = 530
TO_GO_ON = 4


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("stage", choices=["all", *stages.STAGES])
    parser.add_argument("--bundle", type=Path, help="the archives that tools.gpu.bundle wrote")
    parser.add_argument("--work", type=Path, required=True, help="kept between calls")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for a stage")
    parser.add_argument("--fresh", action="store_true", help="empty the working folder before")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on a CPU")
    return parser.parse_args(arguments)


def make_site(places: stages.Places, folder: Path | None) -> dict[str, str]:
    """Unpack the bundle unless it is there; return the variables of all steps."""
    target = places.site.parent
    if folder is not None and not places.site.is_dir():
        part = target.with_name("bundle.part")
        bundle.unpack(folder, part)
        part.rename(target)
    known = [str(places.site), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in known if path),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} if places.rehearse else {}),
    }


def run_stage(
    name: str, places: stages.Places, limit_s: float, variables: dict[str, str]
) -> tuple[list[str], list[str]]:
    record = Record(places.work / "records", name)
    steps = stages.list_steps(name, places)
    for step in steps:
        if not record.is_done(step):
            stages.clear_result(places, name, step)
    return run_steps(steps, record, places.work, limit_s, variables)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = read_arguments(arguments)
    places = stages.Places(asked.work.resolve(), asked.rehearse)
    start = time.monotonic()
    if asked.fresh:
        shutil.rmtree(places.work, ignore_errors=True)
    folder = asked.bundle
    if folder is None and asked.rehearse:
        folder = places.work / "archives"
        bundle.assemble(folder, f"{sys.version_info.major}.{sys.version_info.minor}")
    variables = make_site(places, folder)
    common = [name for name in stages.STAGES if name not in stages.CONTAINERS]
    failed: list[str] = []
    left: list[str] = []
    first, *others = common if asked.stage == "all" else [asked.stage]

    def run(name: str) -> None:
        bad, rest = run_stage(name, places, asked.limit, variables)
        failed.extend(f"{name}/{step}" for step in bad)
        left.extend(f"{name}/{step}" for step in rest)

    run(first)
    # Figures of a rehearsal mean nothing, so its stages may disturb each other.
    with ThreadPoolExecutor(2 if places.rehearse else 1) as pool:
        list(pool.map(run, others))
    for line in list_goals(list(read_records(places.work / "records"))):
        print(line)
    print(f"{time.monotonic() - start:.0f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
        return 1
    if left:
        print(f"left for the next call: {', '.join(left)}")
        return TO_GO_ON
    return 0


if __name__ == "__main__":
    sys.exit(main())
