"""The card and the machine: what they are, what they can do at most, and the shares of that.

`python -m tools.gpu.card FILE` writes the description as JSON, with two ceilings measured there: a
large product of matrices in bfloat16, and a large copy.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT_REQUIREMENTS = (
    "evalution-transformers",
    "evalution-lm-eval",
    "evalution-tinygrad",
    "evalution-conformance",
)
SHOWN = ("torch", "transformers", "lm-eval", "tinygrad", "llama-cpp-python", "tokenizers")
_REPEATS = 7


@dataclass(frozen=True)
class Peak:
    """Figures of a card's data sheet: dense bfloat16 FLOP/s, and bytes/s of its memory."""

    flops: float
    bandwidth: float


PEAKS = {
    "H200": Peak(989e12, 4.8e12),
    "H100 PCIe": Peak(756e12, 2.0e12),
    "H100 NVL": Peak(835e12, 3.9e12),
    "H100": Peak(989e12, 3.35e12),
    "A100 SXM4 40GB": Peak(312e12, 1.555e12),
    "A100 PCIE 40GB": Peak(312e12, 1.555e12),
    "A100": Peak(312e12, 2.039e12),
    "L40S": Peak(362e12, 0.864e12),
    "L4": Peak(121e12, 0.3e12),
    "RTX 4090": Peak(165e12, 1.008e12),
}
"""NVIDIA's data sheets, without sparsity; the first whose words a card's name contains counts."""


def find_peak(name: str) -> Peak | None:
    words = f" {name.replace('-', ' ')} "
    return next((peak for known, peak in PEAKS.items() if f" {known} " in words), None)


def count_body_parameters(shape: dict[str, int]) -> int:
    """Weights of a Llama's layers, which each token passes; embeddings and head are left out."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    kept = shape["num_key_value_heads"] / shape["num_attention_heads"]
    attention = hidden * hidden * (2 + 2 * kept)
    return int(shape["num_hidden_layers"] * (attention + 3 * hidden * inner))


def compute_flops_share(tokens: int, parameters: int, seconds: float, flops: float) -> float:
    """Share of the peak at 2 FLOP a weight and token; attention and head come on top, uncounted."""
    return 2 * parameters * tokens / seconds / flops


def compute_decoding_share(
    tokens: int, rows: int, weights_bytes: int, seconds: float, bandwidth: float
) -> float:
    """Share of the bandwidth if every step makes `rows` tokens and reads only the weights."""
    return tokens / rows * weights_bytes / bandwidth / seconds


def find_cuda_wheels() -> Path | None:
    """Return the folder of CUDA's libraries and headers that wheels of torch bring."""
    found = find_spec("nvidia")
    places = (found.submodule_search_locations or ()) if found else ()
    folders = [Path(place) / "cu13" for place in places]
    return next((folder for folder in folders if (folder / "include/cublas_v2.h").is_file()), None)


def find_cuda_libraries() -> dict[str, str]:
    """Return LD_LIBRARY_PATH with CUDA's wheels and driver: some programs look nowhere else."""
    wheels, ldconfig = find_cuda_wheels(), shutil.which("ldconfig", path=f"{os.defpath}:/sbin")
    command = [ldconfig, "-p"] if ldconfig else ["true"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    drivers = [line.split()[-1] for line in listed.splitlines() if "libcuda.so" in line]
    folders = [*([wheels / "lib"] if wheels else []), *(Path(file).parent for file in drivers)]
    known = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    paths = dict.fromkeys([*map(str, folders), *filter(None, known)])
    return {"LD_LIBRARY_PATH": os.pathsep.join(paths)} if paths else {}


def find_unmet() -> list[str]:
    """Return the requirements of our packages that this environment doesn't meet."""
    from packaging.requirements import Requirement

    unmet: list[str] = []
    seen: set[str] = set()
    waiting: list[str] = [*ROOT_REQUIREMENTS]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for line in requires(name) or ():
            needed = Requirement(line)
            if needed.marker and not needed.marker.evaluate({"extra": ""}):
                continue
            try:
                found = version(needed.name)
            except PackageNotFoundError:
                unmet.append(f"{name} needs {needed}, which isn't here")
                continue
            if not needed.specifier.contains(found, prereleases=True):
                unmet.append(f"{name} needs {needed}, here is {found}")
            waiting.append(needed.name)
    return unmet


def measure(run: Callable[[], object], device: str) -> float:
    """Median seconds of `run`, warm."""
    import torch

    times: list[float] = []
    for _ in range(_REPEATS + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def describe_card() -> dict[str, Any]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, length = (8192, 1 << 32) if device == "cuda" else (256, 1 << 22)
    left, right = (torch.randn(width, width, device=device).bfloat16() for _ in range(2))
    source = torch.randint(0, 255, (length,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    peak = find_peak(name)
    return {
        "device": device,
        "card": name,
        "memory_gib": torch.cuda.mem_get_info()[1] / 2**30 if device == "cuda" else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in SHOWN},
        "at": datetime.now(UTC).date().isoformat(),
        "peak_flops": peak and peak.flops,
        "peak_bandwidth": peak and peak.bandwidth,
        "measured_flops": 2 * width**3 / measure(lambda: left @ right, device),
        "measured_bandwidth": 2 * length / measure(lambda: target.copy_(source), device),
        "unmet": find_unmet(),
    }


def main() -> None:
    found = describe_card()
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1), "utf-8")
    print(json.dumps(found))
    if found["unmet"]:
        sys.exit("; ".join(found["unmet"]))


if __name__ == "__main__":
    main()
