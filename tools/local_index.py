"""Publish all packages to a package index on this machine: `uv run tools/local_index.py`.

Builds wheels and sdists, serves an empty index, and uploads in the order of a release. Then, until
Ctrl-C, `pip install --extra-index-url URL evalution-…` installs them by name.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import release

SERVER = "pypiserver==2.4.2"
PATIENCE_S = 60


@contextmanager
def serve_index(folder: Path) -> Iterator[str]:
    """Serve the archives of a folder, and those that are uploaded; yield the index's address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = ["uvx", "--from", SERVER, "pypi-server", "run", "--disable-fallback"]
    command += ["-i", "127.0.0.1", "-p", str(port), "-a", ".", "-P", ".", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(address, server)
            yield address
        finally:
            server.terminate()


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    """Return once the server answers.

    Raises:
        RuntimeError: it ended, or doesn't answer in time.
    """
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError(f"{SERVER} doesn't answer at {address}")


def upload(address: str, *archives: Path) -> None:
    """Upload archives as a release does; the index takes any name and password."""
    command = ["uv", "publish", "--quiet", "--publish-url", f"{address}/"]
    command += ["--trusted-publishing", "never", "--username", "any", "--password", "any"]
    # A proxy of the environment doesn't lead to this machine.
    local = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    subprocess.run([*command, *map(str, archives)], env=local, check=True)


def publish_members(address: str, built: Path) -> list[str]:
    """Build all packages into a folder and upload each after those that it requires."""
    release.run(["uv", "build", "--quiet", "--all-packages", "--out-dir", str(built)], release.ROOT)
    names: list[str] = []
    for package in release.choose([], release.read_packages(release.ROOT)):
        stem = f"{package.name.replace('-', '_')}-{package.version}"
        upload(address, *sorted(built.glob(f"{stem}*.whl")), *sorted(built.glob(f"{stem}.tar.gz")))
        names.append(package.name)
    return names


def main() -> int:
    with TemporaryDirectory() as folder, serve_index(Path(folder)) as address:
        with TemporaryDirectory() as built:
            names = publish_members(address, Path(built))
        print(f"{len(names)} packages; pip install --extra-index-url {address}/simple/ NAME")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
