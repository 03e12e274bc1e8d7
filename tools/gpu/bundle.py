"""Assemble what the stages need and the machine lacks: `python -m tools.gpu.bundle FOLDER`.

The folder gets archives of at most 60 MiB each, so many as are needed, with two trees in them:
`site`, the unpacked wheels of our packages and of their requirements, for PYTHONPATH; and `llama`,
the sources of llama.cpp. What machine.txt names is left out. Run it in this checkout with uv and a
package index; the machine itself needs neither.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tools.gpu.llama_sources import PACKAGE, ROOT, fetch_sdist, unpack_needed

MACHINE = Path(__file__).with_name("machine.txt")
LIMIT_BYTES = 60 << 20
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
FURTHER = ("gguf", "hypothesis", "lm-eval>=0.4.13", "pytest-timeout", "pytest-xdist")
PINS = ROOT / "tools" / "envs" / "torch.txt"
"""The version of Transformers that the tests run on."""
_PLATFORM = "x86_64-manylinux_2_28"
_OF_TORCH = ("cuda-", "nvidia-")


def read_present() -> tuple[list[str], set[str]]:
    """Return the lines of machine.txt, and the names of the distributions there."""
    lines = MACHINE.read_text("utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    return wanted, {line.partition("==")[0] for line in wanted}


def run_uv(*arguments: object) -> None:
    subprocess.run(["uv", *map(str, arguments)], cwd=ROOT, check=True)


def resolve(wheels: Path, folder: Path, python: str) -> Path:
    """Return a requirements file of all that the machine lacks, each in one version."""
    lines, present = read_present()
    pins = [
        line.split()[0]
        for line in PINS.read_text("utf-8").splitlines()
        if line.startswith("transformers==")
    ]
    asked, found = folder / "asked.in", folder / "resolved.txt"
    asked.write_text("\n".join([*MEMBERS, *FURTHER, *lines, *pins]), "utf-8")
    run_uv(
        *("pip", "compile", "--no-config", "--quiet", "--no-annotate", "--no-header"),
        *("--python-version", python, "--python-platform", _PLATFORM),
        *("--find-links", wheels, asked, "--output-file", found),
    )
    lacking = [
        line
        for line in found.read_text("utf-8").splitlines()
        if line.partition("==")[0] not in present | {PACKAGE} and not line.startswith(_OF_TORCH)
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


def pack(tree: Path, folder: Path) -> list[Path]:
    """Write `tree` into archives of at most LIMIT_BYTES, files in order; return their paths."""
    files = sorted(
        file for file in tree.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    )
    whole = folder / "bundle-1.zip"
    sizes = _write_archive(whole, tree, files)
    if whole.stat().st_size <= LIMIT_BYTES:
        return [whole]
    made: list[Path] = []
    for number, group in enumerate(_split(zip(files, sizes, strict=True)), start=1):
        made.append(folder / f"bundle-{number}.zip")
        _write_archive(made[-1], tree, group)
    return made


def _write_archive(target: Path, tree: Path, files: Sequence[Path]) -> list[int]:
    """Return at least as many bytes for each file as it takes in the archive."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.relative_to(tree))
        return [one.compress_size + 2 * len(one.filename) + 200 for one in archive.infolist()]


def _split(files: Iterable[tuple[Path, int]]) -> Iterator[list[Path]]:
    group: list[Path] = []
    total = 0
    for file, size in files:
        if group and total + size > LIMIT_BYTES:
            yield group
            group, total = [], 0
        group.append(file)
        total += size
    if group:
        yield group


def unpack(folder: Path, target: Path) -> None:
    """Unpack the archives of `folder`.

    Raises:
        SystemExit: there is none.
    """
    archives = sorted(folder.glob("bundle-*.zip"))
    if not archives:
        raise SystemExit(f"{folder} has no bundle-1.zip; make it by `python -m tools.gpu.bundle`")
    for path in archives:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(target)


def assemble(folder: Path, python: str) -> list[Path]:
    """Write the archives for this version of Python into `folder`, and print their sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("bundle-*.zip"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        site = tree / "site"
        install(site, Path(scratch), python)
        shutil.rmtree(site / "bin", ignore_errors=True)
        check_extensions(site, python)
        unpack_needed(fetch_sdist(CACHE), site, tree / "llama")
        archives = pack(tree, folder)
    for archive in archives:
        print(f"{archive.name}: {archive.stat().st_size / 2**20:.1f} MiB", flush=True)
    return archives


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="the machine's version [default: 3.12]")
    chosen = parser.parse_args(arguments)
    assemble(chosen.folder, chosen.python)


if __name__ == "__main__":
    main()
