"""Holds what engine packages say about their runtimes against the real source of those.

A package lists its sources in its pyproject.toml: the lower and the upper bound of the range that
it supports, or a folder with recorded signatures where no wheel can be had.

    [tool.evalution]
    upstream = ["acme-runtime==0.32.0", "acme-runtime==0.33.0"]

Wheels are unpacked under the user's cache folder and never imported. The exit status is 1 when a
name, a parameter, a default or a field differs; each difference is a line with both places.

    uv run tools/check_upstream_api.py                   # each package that lists sources
    uv run tools/check_upstream_api.py evalution-vllm
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from upstream_api.claims import bounds_of, claims_of
from upstream_api.drift import drift

PACKAGES = Path(__file__).resolve().parents[1] / "packages"


def main(given: list[str] | None = None) -> int:
    arguments = _parser().parse_args(given)
    packages: list[Path] = [arguments.packages / name for name in arguments.member]
    if unknown := [one.name for one in packages if not (one / "pyproject.toml").is_file()]:
        print(f"no package named {', '.join(unknown)} in {arguments.packages}")
        return 2
    differences = 0
    for package in packages or sorted(arguments.packages.iterdir()):
        differences += _checked(package, arguments.cache, is_asked=bool(packages))
    print(f"{differences} differences" if differences else "no difference")
    return 1 if differences else 0


def _checked(package: Path, cache: Path, *, is_asked: bool) -> int:
    """Return the number of differences of a package; each is printed."""
    bounds = bounds_of(package, cache) if (package / "pyproject.toml").is_file() else []
    claimed = list(claims_of(package))
    if bool(bounds) != bool(claimed) or (is_asked and not bounds):
        print(
            f"{package.name}: sources listed: {len(bounds)}, modules that name one: {len(claimed)}"
        )
        return 1
    differences = 0
    for source in bounds:
        count = sum(len(one.claims) for one in claimed)
        for one in claimed:
            folder = one.source.root.relative_to(package.parent).as_posix()
            for line in (line for claim in one.claims for line in drift(claim, source, one.source)):
                differences += 1
                print(f"{folder}/{line}")
        print(f"{package.name}: {count} claims held against {source.label}")
    return differences


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "member", nargs="*", help="evalution-vllm, …; all that list sources if none"
    )
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="the folder of packages")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalution"
    parser.add_argument("--cache", type=Path, default=cache / "upstream", help="unpacked wheels")
    return parser


if __name__ == "__main__":
    sys.exit(main())
