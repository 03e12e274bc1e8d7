"""Compile llama.cpp's library with CUDA: `python -m tools.gpu.llama_build SOURCES BUILD [ARCH]`.

It goes on where an earlier attempt was cut off. Only the kernels of the card at hand are compiled,
or of ARCH (`90`), and those of flash attention, most of the work, are left out, since the engine
doesn't use them unless it is asked to. Without a GPU it configures the CPU's part and checks that
no file is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from tools.gpu.card import find_cuda_wheels
from tools.gpu.steps import stop_unavailable

LEFT_OUT = ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP")
LIBRARIES = ("cublas", "cublasLt", "cudart")


def name_libraries(wheels: Path) -> list[str]:
    """Return CMake's settings for libraries that only wheels have, under versioned names."""
    found = {name: sorted((wheels / "lib").glob(f"lib{name}.so*")) for name in LIBRARIES}
    return [
        f"-DCMAKE_CUDA_FLAGS=-I{wheels / 'include'}",
        *(f"-DCUDA_{name}_LIBRARY={files[0]}" for name, files in found.items() if files),
    ]


def find_architecture(asked: list[str]) -> str | None:
    """Return the compute capability to compile for, None without a GPU: `90`."""
    if asked:
        return asked[0]
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{major}{minor}"


def configure(sources: Path, build: Path, architecture: str | None) -> list[str]:
    """Return the command that configures the build."""
    command = [
        *("cmake", "-S", str(sources), "-B", str(build), "-G", "Ninja"),
        *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_OPENMP=OFF"),
        *(f"-DLLAMA_BUILD_{part}=OFF" for part in LEFT_OUT),
    ]
    if architecture is None:
        return [*command, "-DGGML_CUDA=OFF"]
    off = ("-DGGML_CUDA_FA=OFF", "-DGGML_CUDA_NCCL=OFF", "-DGGML_CUDA_NO_VMM=ON")
    wheels = find_cuda_wheels()
    return [
        *(*command, "-DGGML_CUDA=ON", *off, f"-DCMAKE_CUDA_ARCHITECTURES={architecture}"),
        *(name_libraries(wheels) if wheels else ()),
    ]


def main() -> None:
    sources, build, *asked = sys.argv[1:]
    architecture = find_architecture(asked)
    programs = ["cmake", "ninja", "c++", *(["nvcc"] if architecture else [])]
    if missing := [name for name in programs if shutil.which(name) is None]:
        stop_unavailable(f"not here: {', '.join(missing)}")
    if not (Path(build) / "build.ninja").is_file():
        subprocess.run(configure(Path(sources), Path(build), architecture), check=True)
    make = ["ninja", "-C", build, f"-j{os.cpu_count() or 1}", "llama"]
    subprocess.run(make if torch.cuda.is_available() else [*make, "-n"], check=True)


if __name__ == "__main__":
    main()
