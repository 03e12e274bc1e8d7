"""Print what comparing two sessions in lockstep costs, against plain scoring by each of them.

Run it in the environment torch of tools/envs for Transformers, or gguf for llama.cpp, whose other
side has weights in q8_0. A pair is: both sessions score all windows, then both are read in lockstep
and compared. The ratio is the processor time of the former to that of the latter, the median of
interleaved pairs. `--memory` prints how much more memory the process had at its peak while windows
of 2,048 tokens were compared at a vocabulary of 128,000, both models in memory before.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from evalution.fidelity.lockstep import SessionRows, compare_windows
from evalution.fidelity.requests import Window
from evalution_core import BaseInferenceSession, LoglikelihoodRequest, Model

Config = dict[str, Any]
_FIRST = 300
"""Ids below are bytes and special tokens."""


def build_sessions(folder: Path, model: Config, config: Config) -> list[BaseInferenceSession]:
    """Return two sessions on a random model, those of llama.cpp with weights of other types."""
    threads, seed = config["threads"], config["seed"]
    if find_spec("llama_cpp") is not None:
        from llama_cpp_python import write_model

        from evalution_llama_cpp import LlamaCpp

        sessions: list[BaseInferenceSession] = []
        for weights in ("f32", "q8_0"):
            path = folder / f"{weights}.gguf"
            write_model(path, {**model, "weights": weights}, seed)
            sessions.append(LlamaCpp(n_threads=threads).build(Model(str(path))))
        return sessions
    import torch
    from random_llama import write_checkpoint

    from evalution_transformers import Transformers

    torch.set_num_threads(threads)
    shape = {
        "vocab_size": model["vocab_size"],
        "hidden_size": model["hidden_size"],
        "intermediate_size": model["intermediate_size"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "max_position_embeddings": model["context"],
        "initializer_range": model.get("spread", 0.02),
    }
    write_checkpoint(folder, shape, seed)
    engine = Transformers(dtype="float32", device="cpu")
    return [engine.build(Model(str(folder))) for _ in range(2)]


def draw_windows(chance: random.Random, count: int, length: int, vocabulary: int) -> list[Window]:
    """Return windows of random ids whose every token but the first is compared."""
    return [
        Window([chance.randrange(_FIRST, vocabulary) for _ in range(length)], 1)
        for _ in range(count)
    ]


def score(session: BaseInferenceSession, windows: Sequence[Window]) -> None:
    """Score the windows."""
    session.loglikelihood(
        [
            LoglikelihoodRequest(
                context_input_ids=window.input_ids[:1], continuation_input_ids=window.scored_ids
            )
            for window in windows
        ]
    )


def compare(sessions: Sequence[BaseInferenceSession], windows: Sequence[Window]) -> None:
    """Compare the windows; raises where one has failed."""
    reference, side = map(SessionRows, sessions)
    for found in compare_windows(reference, side, windows):
        if found.figures is None:
            raise RuntimeError(found.failure)


def measure(run: Callable[[], None]) -> float:
    """Return the seconds of processor time of `run`."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each shape, or the memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args(arguments)
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    model = config["wide" if given.memory else "model"]
    chance = random.Random(config["seed"])
    with tempfile.TemporaryDirectory() as folder:
        sessions = build_sessions(Path(folder), model, config)
        if given.memory:
            print_memory(sessions, draw_windows(chance, 2, 2048, model["vocab_size"]))
            return
        for name, shape in config["shapes"].items():
            windows = draw_windows(chance, shape["windows"], shape["length"], model["vocab_size"])
            ratios: list[float] = []
            for _ in range(given.pairs or config["pairs"]):
                plain = sum(measure(partial(score, session, windows)) for session in sessions)
                ratios.append(plain / measure(partial(compare, sessions, windows)))
            print(
                f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
                f"{max(ratios):.3f}), at least {shape['least']}"
            )


def print_memory(sessions: Sequence[BaseInferenceSession], windows: Sequence[Window]) -> None:
    """Print the growth of the peak while windows are compared, in MiB."""
    for session in sessions:
        score(session, [Window(windows[0].input_ids[:16], 1)])
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far was writing the model
    before = read_memory("VmRSS")
    compare(sessions, windows)
    print(f"memory: {(read_memory('VmHWM') - before) / 1024:.0f} MiB beside the models")


def read_memory(name: str) -> int:
    """Return a figure of this process's memory in KiB, as Linux names it."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition(f"{name}:")[2].split()[0])


if __name__ == "__main__":
    main()
