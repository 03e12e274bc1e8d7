"""Measure engines against each other on the tiny model, each in its own environment.

`uv run tools/fidelity_matrix.py` takes the environments that `tools/ci.py build` has made, holds
every engine against the float64 reference, and the reference against it, and prints KL in nats. An
engine whose divergence is above its bound fails. SGLang isn't among them, since without a GPU it
starts with stand-ins of its tests alone; GPTQModel's quantised weights have a test of their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGINES: dict[str, tuple[str, str, float]] = {
    "Reference, float32": ("", "{type: Reference, dtype: float32}", 1e-9),
    "Transformers": ("torch", "{type: Transformers, dtype: float32}", 1e-9),
    "TransformersCompat": ("torch", "{type: TransformersCompat, dtype: float32}", 1e-9),
    "Transformers, bfloat16": ("torch", "{type: Transformers, dtype: bfloat16}", 1e-3),
    "OpenVINO": ("openvino", "{type: OpenVINO, dtype: float32}", 1e-9),
    "LlamaCpp": ("gguf", "{type: LlamaCpp}", 1e-9),
    "Tinygrad": ("gguf", "{type: Tinygrad}", 1e-9),
    "VLLM": ("vllm", "{type: VLLM, dtype: float32}", 1e-9),
}
"""Label to environment, spec and the largest mean KL: float32, and bfloat16's eight bits."""
TESTS = """
  - {type: Perplexity, data: "builtin:tiny/prose", text: text, max_rows: 6}
  - type: MultipleChoice
    data: builtin:tiny/choices
    prompt: "Question: {question}\\nAnswer:"
    choices: choices
    target: answer
    max_rows: 8
"""


def main() -> int:
    """Print the matrix; 1 where a measurement failed or is above its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(ENGINES), help="labels of engines")
    parser.add_argument("--python", type=Path, default=ROOT, help="folder of the environments")
    given = parser.parse_args()
    failed = 0
    print(f"{'engine':24} {'KL(reference ‖ engine)':>24} {'KL(engine ‖ reference)':>24}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        exact = write_spec(Path(folder), "exact", "{type: Reference, dtype: float64}")
        for label in given.only:
            environment, engine, bound = ENGINES[label]
            if environment:
                python = given.python / f".venv-{environment}/bin/python"
                engine = f"{{python: {python}, {engine[1:]}"
            spec = write_spec(Path(folder), "engine", engine)
            found = list(pool.map(measure, (exact, spec), (spec, exact)))
            is_within = all(isinstance(kl, float) and kl <= bound for kl in found)
            failed += not is_within
            cells = [f"{kl:24.1e}" if isinstance(kl, float) else f"{kl:>24}" for kl in found]
            print(
                f"{label:24} {' '.join(cells)}{'' if is_within else f'  above {bound:g}'}",
                flush=True,
            )
    return min(failed, 1)


def write_spec(folder: Path, name: str, engine: str) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(f"engine: {engine}\nmodel: builtin:tiny\ntests:{TESTS}")
    return file


def measure(reference: Path, candidate: Path) -> float | str:
    """Return the mean KL of all suites, or that there is none, with its reason on stderr."""
    command = [sys.executable, "-m", "evalution", "fidelity", str(reference), str(candidate)]
    done = subprocess.run(
        [*command, "--allow-code", "--json", "--window", "128"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return "failed"
    return float(json.loads(done.stdout)["overall"]["candidate"]["divergence"]["kl"]["value"])


if __name__ == "__main__":
    raise SystemExit(main())
