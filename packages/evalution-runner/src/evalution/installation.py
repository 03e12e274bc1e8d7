"""Faults of what is installed beside the runner: another project's `evalution`, unused CUDA."""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions

from evalution_core import ConfigurationError
from evalution_core.plugins import UNREADABLE, normalize

_MEGABYTE = 1_000_000
_CUDA_MEGABYTES = 100
"""Smaller packages of NVIDIA's, such as nvidia-ml-py, are no part of a CUDA build."""


def find_name_clash() -> str | None:
    """Return a sentence about an installed distribution `evalution`, None where there is none.

    On the public index that is another project, whose import package has the same name. One that
    requires the runner is ours (decision 0025).
    """
    try:
        other = distribution("evalution")
    except PackageNotFoundError:
        return None
    ours = normalize("evalution-runner")
    if any(normalize(line).startswith(ours) for line in other.requires or ()):
        return None
    return (
        f"the distribution evalution {other.version} is installed beside evalution-runner: it is "
        "another project with the same import package, and one has overwritten files of the "
        "other; uninstall both (pip uninstall evalution evalution-runner), then install the "
        "runner (pip install evalution-runner)"
    )


def check_installation() -> None:
    """Raise a `ConfigurationError` where another project's `evalution` is installed."""
    if (clash := find_name_clash()) is not None:
        raise ConfigurationError(clash)


def find_unused_cuda() -> str | None:
    """Return a hint about the CUDA build of torch, for a machine without a GPU; None without it."""
    try:
        torch = distribution("torch")
    except PackageNotFoundError:
        return None
    found = {dist.name: _count_bytes(dist) for dist in distributions() if _is_nvidia(dist)}
    megabytes = sum(found.values()) / _MEGABYTE
    if megabytes < _CUDA_MEGABYTES:
        return None
    version = torch.version.partition("+")[0]
    return (
        f"torch {torch.version} is a CUDA build, and this machine has no GPU: {len(found)} "
        f"packages nvidia-* take {megabytes:,.0f} MB. To use the CPU build: "
        f"uv pip install --torch-backend cpu --reinstall-package torch torch=={version} && "
        f"uv pip uninstall {' '.join(sorted(found))}"
    )


def _is_nvidia(dist: Distribution) -> bool:
    try:
        return dist.metadata["Name"].lower().startswith("nvidia-")
    except UNREADABLE:
        return False


def _count_bytes(dist: Distribution) -> int:
    return sum(file.size or 0 for file in dist.files or ())
