"""Assemble what the stages need and the machine lacks: `python -m tools.gpu.bundle FOLDER`.

The folder gets one archive with two trees: `site`, the unpacked wheels of our packages and of
their requirements, for PYTHONPATH; and `llama`, the sources of llama.cpp. What machine.txt names is
left out. Run it in this checkout with uv and a package index; the machine itself needs neither.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tools.gpu.llama_sources import PACKAGE, ROOT, fetch_sdist, unpack_needed

MACHINE, PYTHON = Path(__file__).with_name("machine.txt"), "3.12"
ARCHIVE = "bundle.tar.gz"
LIMIT_BYTES = 42 << 20
"""With a checkout of 20 MiB it is what one copy to such a machine may hold."""
CACHE = ROOT / "build" / "gpu"
MEMBERS = (
    "evalution-runner",
    "evalution-conformance",
    "evalution-core",
    "evalution-enginekit",
    "evalution-llama-cpp",
    "evalution-lm-eval",
    "evalution-reference",
    "evalution-tinygrad",
    "evalution-transformers",
)
FURTHER = (
    *("diskcache", "gguf", "hypothesis", "jinja2", "lm-eval>=0.4.13"),
    *("pytest-timeout", "pytest-xdist"),
)
"""Requirements of the stages themselves and of llama-cpp-python."""
PINS = ROOT / "tools" / "envs" / "torch.txt"
"""The version of Transformers that the tests run on."""
_TASKS = "site/lm_eval/tasks"
_TASKS_DEPTH = 4
_DATA = "evalution_reference/data"
_PLATFORM = "x86_64-manylinux_2_28"
_OF_TORCH = ("cuda-", "nvidia-")


def read_present(python: str) -> tuple[list[str], set[str]]:
    """Return what machine.txt asks for, and the names of the distributions there.

    Its versions are those of its Python: another one, in a rehearsal, may have no such wheels.
    """
    lines = MACHINE.read_text("utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    names = [line.partition("==")[0] for line in wanted]
    return wanted if python == PYTHON else names, set(names)


def run_uv(*arguments: object) -> None:
    subprocess.run(["uv", *map(str, arguments)], cwd=ROOT, check=True)


def resolve(wheels: Path, folder: Path, python: str) -> Path:
    """Return a requirements file of all that the machine lacks, each in one version."""
    lines, present = read_present(python)
    pins = [
        line.split()[0]
        for line in PINS.read_text("utf-8").splitlines()
        if line.startswith("transformers==")
    ]
    asked, left_out, found = (folder / name for name in ("asked.in", "left-out.in", "resolved.txt"))
    asked.write_text("\n".join([*MEMBERS, *FURTHER, *lines, *pins]), "utf-8")
    # Its sources travel; to ask them for their requirements is to wait for whoever compiles them.
    left_out.write_text(f"{PACKAGE}; python_version < '3'", "utf-8")
    run_uv(
        *("pip", "compile", "--no-config", "--quiet", "--no-annotate", "--no-header"),
        *("--python-version", python, "--python-platform", _PLATFORM),
        *("--find-links", wheels, asked, "--override", left_out, "--output-file", found),
    )
    lacking = [
        line
        for line in found.read_text("utf-8").splitlines()
        if line.partition("==")[0] not in present and not line.startswith(_OF_TORCH)
    ]
    lacked = folder / "lacking.txt"
    lacked.write_text("\n".join(lacking), "utf-8")
    return lacked


def install(site: Path, folder: Path, python: str) -> None:
    """Fill `site` with our wheels, and those of other distributions that the machine lacks."""
    wheels = folder / "wheels"
    for member in MEMBERS:
        run_uv("build", "--quiet", "--wheel", "--package", member, "--out-dir", wheels)
    lacking = resolve(wheels, folder, python)
    run_uv(
        *("pip", "install", "--no-config", "--quiet", "--no-deps", "--python", sys.executable),
        *("--python-version", python, "--python-platform", _PLATFORM, "--target", site),
        *("--find-links", wheels, "--requirement", lacking),
    )


def check_extensions(site: Path, python: str) -> None:
    """Exit if a compiled module is for another version of Python."""
    own = f".cpython-{python.replace('.', '')}-"
    wrong = [
        file.relative_to(site)
        for file in site.rglob("*.so")
        if ".cpython-" in file.name and own not in file.name
    ]
    if wrong:
        raise SystemExit(f"not for Python {python}: {', '.join(map(str, wrong))}")


def is_needed(name: str) -> bool:
    """Return whether a file of the tree travels.

    The tasks of lm-eval, 15,000 files, don't, nor does what the checkout has anyway.
    """
    path = PurePosixPath(name)
    is_task = path.is_relative_to(_TASKS) and len(path.parts) > _TASKS_DEPTH
    return not (is_task or path.is_relative_to(f"site/{_DATA}") or "__pycache__" in path.parts)


def pack(tree: Path, folder: Path) -> Path:
    """Write `tree` into the archive of `folder`.

    Raises:
        SystemExit: it is larger than LIMIT_BYTES.
    """
    target = folder / ARCHIVE
    with tarfile.open(target, "w:gz", compresslevel=6) as archive:
        for file in sorted(tree.rglob("*")):
            name = file.relative_to(tree).as_posix()
            if file.is_file() and is_needed(name):
                archive.add(file, name)
    size = target.stat().st_size
    print(f"{target.name}: {size / 2**20:.1f} MiB", flush=True)
    if size > LIMIT_BYTES:
        raise SystemExit(f"more than {LIMIT_BYTES >> 20} MiB: name in {MACHINE.name} what is there")
    return target


def unpack(folder: Path, target: Path) -> None:
    """Unpack the archive of `folder`.

    Raises:
        SystemExit: there is none.
    """
    if not (folder / ARCHIVE).is_file():
        raise SystemExit(f"{folder} has no {ARCHIVE}; make it by `python -m tools.gpu.bundle`")
    with tarfile.open(folder / ARCHIVE) as archive:
        archive.extractall(target, filter="data")
    shutil.copytree(ROOT / "packages/evalution-reference/src" / _DATA, target / "site" / _DATA)


def assemble(folder: Path, python: str) -> None:
    """Write the archive for this version of Python into `folder`, and print its size."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        site = tree / "site"
        install(site, Path(scratch), python)
        shutil.rmtree(site / "bin", ignore_errors=True)
        check_extensions(site, python)
        unpack_needed(fetch_sdist(CACHE), site, tree / "llama")
        pack(tree, folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=PYTHON, help="the machine's [default: %(default)s]")
    chosen = parser.parse_args(arguments)
    assemble(chosen.folder, chosen.python)


if __name__ == "__main__":
    main()
