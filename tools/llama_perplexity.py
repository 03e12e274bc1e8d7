"""Compare our figures with those of llama.cpp's own `llama-perplexity --kl-divergence`.

    .venv-gguf/bin/python tools/llama_perplexity.py         # both sides, as a table
    .venv-gguf/bin/python tools/llama_perplexity.py --ours  # our side alone, which builds nothing

The tool is built once, in the cache folder, from the source inside the release of llama-cpp-python
that is installed: that needs uv and a C++ compiler, and takes seven minutes of processor time. Its
formats are widened to nine digits, nothing else is changed. Both sides read the tiny model's GGUF
files and its prose by the tool's rule: windows of `WINDOW` tokens, the first of which is replaced
by BOS, and scores of their second half, in decodes of one window, with a float32 cache and without
flash attention. The status is 1 if a figure by the tool's own arithmetic (see `Sides`) differs by
more than `TOLERANCE`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from evalution.fidelity.divergence import Figures, compare_rows
from evalution.fidelity.statistics import summarize
from evalution_core import Model
from evalution_core.builtins import builtin_path
from evalution_core.requests import DistributionRequest, DistributionRows
from evalution_llama_cpp import LlamaCpp
from evalution_llama_cpp.context import Context

Rows = NDArray[np.float32]
Ids = NDArray[np.int64]
WINDOW = 128
TOLERANCE = 2e-4
NAMES = {
    "mean KLD": r"Mean +KLD: +(\S+)",
    "median KLD": r"Median +KLD: +(\S+)",
    "99 % KLD": r"99\.0% +KLD: +(\S+)",
    "same top p (%)": r"Same top p: +(\S+)",
    "RMS Δp (%)": r"RMS Δp +: +(\S+)",
    "ln PPL ratio": r"Mean ln\(PPL\(Q\)/PPL\(base\)\) +: +(\S+)",
}
"""The figures, and where the tool's output has each."""
QUANTISATIONS = ("q8_0", "q4_0")
_FORMAT = re.compile(r"%\d+\.\d+l?f")
_BUILD = ("BUILD_SHARED_LIBS", "GGML_OPENMP", "LLAMA_BUILD_APP", "LLAMA_BUILD_EXAMPLES")
_BUILD += ("LLAMA_BUILD_SERVER", "LLAMA_BUILD_TESTS", "LLAMA_OPENSSL", "GGML_NATIVE")
"""Off: not needed; and kernels as in the environment gguf, which is built without `GGML_NATIVE`: by
others, some activations of quantised weights are rounded otherwise, and the figures of q8_0 move by
more than the tolerance.
"""


@dataclass(frozen=True)
class Sides:
    """The figures of a quantised file by name.

    `tool` is what llama-perplexity prints. `same` is ours with the tool's arithmetic: its file
    keeps the reference's log-probabilities in 16 bits, no less likely than e^-16 of the most
    likely, and it adds up p ln(p/q) in float32, which is first order in both roundings. `exact` is
    ours.
    """

    tool: Mapping[str, float] | None
    same: Mapping[str, float]
    exact: Mapping[str, float]


def build_tool(cache: Path) -> Path:
    """Return the tool of the installed release, built in the cache if it isn't there."""
    requirement = f"llama-cpp-python=={llama_cpp.__version__}"
    folder = cache / requirement
    tool = folder / "build" / "bin" / "llama-perplexity"
    if tool.is_file():
        return tool
    folder.mkdir(parents=True, exist_ok=True)
    if not (archives := list(folder.glob("*.tar.gz"))):
        fetch = ["uv", "tool", "run", "pip", "download", "--quiet", "--no-deps"]
        fetch += ["--no-binary", "llama-cpp-python", "--dest", str(folder), requirement]
        subprocess.run(fetch, check=True)
        archives = list(folder.glob("*.tar.gz"))
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.glob("*/vendor/llama.cpp")
    code = source / "tools" / "perplexity" / "perplexity.cpp"
    code.write_text(_FORMAT.sub("%.9g", code.read_text("utf-8")), "utf-8")
    cmake = ["uv", "tool", "run", "cmake"]
    settings = ["-DCMAKE_BUILD_TYPE=Release", *(f"-D{name}=OFF" for name in _BUILD)]
    build = str(folder / "build")
    subprocess.run([*cmake, "-S", str(source), "-B", build, *settings], check=True)
    target = ["--target", "llama-perplexity", "--parallel", "2"]
    subprocess.run([*cmake, "--build", build, *target], check=True)
    return tool


def run_tool(tool: Path, model: Path, text: Path, base: Path, *further: str) -> dict[str, float]:
    """Return the figures that the tool prints: none for the reference, whose file it writes."""
    command = [str(tool), "--model", str(model), "--file", str(text), "--ctx-size", str(WINDOW)]
    command += ["--batch-size", str(WINDOW), "--ubatch-size", str(WINDOW), "--threads", "1"]
    command += ["--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off"]
    command += ["--kl-divergence-base", str(base), *further]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    matches = {name: re.search(pattern, done.stdout) for name, pattern in NAMES.items()}
    return {name: float(found[1].rstrip("%")) for name, found in matches.items() if found}


def quantise(source: Path, target: Path, kind: str) -> None:
    """Write a file of this kind of weights, by llama.cpp's own quantiser with its defaults."""
    library: Any = llama_cpp
    params = library.llama_model_quantize_default_params()
    params.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    status = library.llama_model_quantize(bytes(source), bytes(target), params)
    if status:
        raise RuntimeError(f"llama_model_quantize to {kind} gave {status}")


def read_text() -> str:
    """Return the tiny model's prose, a row a line."""
    lines = builtin_path("builtin:tiny", "rows/prose").read_text("utf-8").splitlines()
    return "\n".join(json.loads(line)["text"] for line in lines)


@dataclass(frozen=True)
class Answers:
    """The windows' second halves by a file: `rows` of log-probabilities that the engine gives, the
    `logits` that it made them of, both [positions, vocabulary], and the tokens that stand there.
    """

    rows: Rows
    logits: Rows
    token_ids: Ids


def compute_answers(path: Path, text: str) -> Answers:
    """Score the windows by the engine.

    One more token is fed than they need, as the tool does: with quantised weights the rows of a
    decode depend a little on how many there are.
    """
    engine = LlamaCpp(device="cpu", n_threads=1, n_ctx=WINDOW, n_batch=WINDOW)
    with engine.build(Model(str(path))) as session:
        (bos,) = session.tokenizer.leading_ids
        ids = np.array([bos, *session.tokenizer.encode(text)])
        windows = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
        windows[:, 0] = bos
        start = WINDOW // 2 + 1
        requests = [DistributionRequest([*window, bos], start) for window in windows.tolist()]
        with _kept_logits() as logits:
            answers = session.distributions(enumerate(requests), batch_size=1)
            rows = [np.array(_require_rows(answer).rows) for _, answer in answers]

    def flatten(blocks: list[Rows]) -> Rows:
        return np.stack(blocks)[:, :-1].reshape(-1, blocks[0].shape[-1])

    # The first call makes a few decodes more, to probe the file, before those of the windows.
    return Answers(flatten(rows), flatten(logits[-len(rows) :]), windows[:, start:].ravel())


@contextmanager
def _kept_logits() -> Iterator[list[Rows]]:
    """Collect what each decode gives, in its order."""
    kept: list[Rows] = []
    decode = Context.decode

    def decode_and_keep(context: Context) -> Rows:
        kept.append(decode(context).copy())
        return kept[-1]

    with mock.patch.object(Context, "decode", decode_and_keep):
        yield kept


def _require_rows(answer: Any) -> DistributionRows:
    if isinstance(answer, DistributionRows):
        return answer
    raise answer.error


def write_rows(logits: Rows) -> Rows:
    """Return the log-probabilities that the tool's file has: 16 bits from the largest to 16 less.

    As `log_softmax` of its perplexity.cpp computes them, in float32 like here.
    """
    largest = logits.max(axis=1, keepdims=True)
    least = np.maximum(logits.min(axis=1, keepdims=True), largest - 16)
    scale = (largest - least) / np.float32(65535)
    steps = np.rint(np.maximum(logits - least, 0) * (1 / scale))
    return scale * steps + (least - largest - _log_sum_exp(logits, largest))


def add_terms(reference: Rows, logits: Rows) -> NDArray[np.float64]:
    """Return the sums of p ln(p/q) that the tool takes for KL divergences, by position.

    As the other `log_softmax` computes them, term by term in float32.
    """
    largest = logits.max(axis=1, keepdims=True)
    kept = np.where(reference > -16, np.exp(reference), 0)
    terms = kept * (reference - logits + (largest + _log_sum_exp(logits, largest)))
    return terms.sum(axis=1, dtype=np.float64)


def _log_sum_exp(logits: Rows, largest: Rows) -> Rows:
    """Return ln Σ exp(logit - largest): added up in float64, kept in float32."""
    sums = np.exp(logits - largest).sum(axis=1, keepdims=True, dtype=np.float64)
    return np.log(sums).astype(np.float32)


def list_figures(figures: Figures) -> dict[str, float]:
    found = summarize(figures, np.zeros(len(figures), np.int64))
    shares = [100 * found.same_top.value, 100 * found.rms_dp]
    values = [found.kl.value, found.median, found.p99, *shares, found.log_ppl_ratio.value]
    return dict(zip(NAMES, values, strict=True))


def compare(tool: Path | None) -> Iterator[tuple[str, Sides]]:
    """Yield each quantisation with the figures of both sides; without a tool with ours alone."""
    text = read_text()
    source = builtin_path("builtin:tiny", "gguf")
    with tempfile.TemporaryDirectory() as folder:
        base, written = Path(folder, "base"), Path(folder, "text")
        written.write_text(text, "utf-8")
        if tool is not None:
            run_tool(tool, source, written, base)
        reference = compute_answers(source, text)
        kept = write_rows(reference.logits)
        for kind in QUANTISATIONS:
            model = Path(folder, f"{kind}.gguf")
            quantise(source, model, kind)
            answers = compute_answers(model, text)
            same = compare_rows(kept, answers.rows, answers.token_ids)
            same["kl"] = add_terms(kept, answers.logits)
            exact = compare_rows(reference.rows, answers.rows, answers.token_ids)
            yield (
                kind,
                Sides(
                    tool and run_tool(tool, model, written, base, "--kl-divergence"),
                    list_figures(same),
                    list_figures(exact),
                ),
            )


def write_table(compared: Mapping[str, Sides]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield "| weights | figure | llama-perplexity | ours, by its arithmetic | ours |"
    yield "|---|---|---|---|---|"
    for kind, sides in compared.items():
        for name in NAMES:
            columns = [sides.tool, sides.same, sides.exact]
            values = ["–" if side is None else f"{side[name]:.4g}" for side in columns]
            yield f"| {kind} | {name} | {' | '.join(values)} |"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ours", action="store_true", help="build and run nothing of llama.cpp's")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--cache", type=Path, default=home / "evalution" / "llama.cpp")
    chosen = parser.parse_args(given)
    compared = dict(compare(None if chosen.ours else build_tool(chosen.cache)))
    print(*write_table(compared), sep="\n")
    pairs = [(sides.tool or sides.same, sides.same) for sides in compared.values()]
    return int(
        any(abs(a[name] - b[name]) > TOLERANCE * abs(a[name]) for a, b in pairs for name in NAMES)
    )


if __name__ == "__main__":
    sys.exit(main())
