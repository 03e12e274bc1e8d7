"""The sources of llama-cpp-python, cut down to its binding and the library's CPU and CUDA parts.

The sdist has 75 MB, most of it other backends, tests and pages of a server.
"""

from __future__ import annotations

import hashlib
import tarfile
import tomllib
import urllib.request
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PACKAGE = "llama-cpp-python"
_LIBRARY = "vendor/llama.cpp"
_KEPT = (
    "llama_cpp",
    *(
        f"{_LIBRARY}/{part}"
        for part in ("CMakeLists.txt", "LICENSE", "cmake", "include", "src", "vendor")
    ),
    f"{_LIBRARY}/ggml",
)
_BACKENDS = f"{_LIBRARY}/ggml/src"
_BACKENDS_KEPT = ("ggml-cpu", "ggml-cuda")


def is_needed(name: str) -> bool:
    """Return whether a file of the sdist, named without its first folder, is part of the cut."""
    path = PurePosixPath(name)
    if not any(path.is_relative_to(part) for part in _KEPT):
        return False
    if not path.is_relative_to(_BACKENDS):
        return True
    first, *below = path.relative_to(_BACKENDS).parts
    return not below or first in _BACKENDS_KEPT


def read_locked() -> tuple[str, str, str]:
    """Return the version, the address and the SHA-256 hash of the sdist in uv.lock."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
    (package,) = (one for one in lock["package"] if one["name"] == PACKAGE)
    sdist = package["sdist"]
    return package["version"], sdist["url"], sdist["hash"].removeprefix("sha256:")


def fetch_sdist(cache: Path) -> Path:
    """Return the sdist, downloaded unless `cache` has it.

    Raises:
        SystemExit: the file isn't the one that uv.lock names.
    """
    _, address, digest = read_locked()
    file = cache / Path(address).name
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        urllib.request.urlretrieve(address, part)
        part.rename(file)
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != digest:
        raise SystemExit(f"{file} has the hash {found}, uv.lock says {digest}; delete it")
    return file


def unpack_needed(sdist: Path, site: Path, sources: Path) -> None:
    """Put the binding, with its metadata, into `site` and the library's sources into `sources`."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, _, name = member.name.partition("/")
            if member.isfile() and is_needed(name):
                is_binding = name.startswith("llama_cpp/")
                member.name = name if is_binding else name.removeprefix(f"{_LIBRARY}/")
                archive.extract(member, site if is_binding else sources, filter="data")
    version, *_ = read_locked()
    metadata = site / f"llama_cpp_python-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n", "utf-8")
