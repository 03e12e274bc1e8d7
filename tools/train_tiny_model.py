"""Trains the tiny model that `evalution-reference` carries, or checks the committed files.

Needs torch (CPU), numpy, safetensors, tokenizers, gguf and jinja2. Training takes one thread and
about ten minutes; the same seed on the same machine gives the same files.

    python tools/train_tiny_model.py            # trains and writes the data folder
    python tools/train_tiny_model.py --check    # verifies the folder as it is
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from tiny_model.build import train_and_write
from tiny_model.verification import problems

PACKAGE = Path(__file__).resolve().parent.parent / "packages" / "evalution-reference"
DATA_FOLDER = PACKAGE / "src" / "evalution_reference" / "data" / "tiny"


def main() -> int:
    """Exit status: 0 when every check of the folder passes."""
    arguments = _parser().parse_args()
    torch.set_num_threads(1)
    if not arguments.check:
        started = time.monotonic()
        train_and_write(arguments.output, arguments.steps, arguments.seed)
        print(f"written to {arguments.output} after {time.monotonic() - started:.0f} s")
    found = problems(arguments.output)
    for problem in found:
        print(f"problem: {problem}")
    print("failed" if found else "all checks passed")
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="verify the folder, train nothing")
    parser.add_argument("--output", type=Path, default=DATA_FOLDER, help="the data folder")
    parser.add_argument("--steps", type=int, default=1050, help="training steps")
    parser.add_argument("--seed", type=int, default=7, help="seed of text, weights and rows")
    return parser


if __name__ == "__main__":
    sys.exit(main())
