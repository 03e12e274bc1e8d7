"""Check, order and tag the packages that are to be released; nothing here uploads.

    uv run tools/release.py check [NAME ...]   build into dist/ and check; without a name, all
    uv run tools/release.py bump NAME patch    the next version, with a heading in the changelog
    uv run tools/release.py order NAME ...     in the order of upload: what others need first
    uv run tools/release.py tag NAME ...       check, and make the tags `name/vX` of a release

docs/releasing.md has the way from a change to an upload, which .github/workflows/release.yml does
when a tag is pushed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
UNRELEASED = "(not released)"
TWINE, CONTENTS = "twine>=6.1,<7", "check-wheel-contents>=0.6.2,<0.7"


@dataclass(frozen=True)
class Package:
    """A member of the workspace, as its own files describe it."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def project(self) -> dict[str, Any]:
        text = (self.folder / "pyproject.toml").read_text(encoding="utf-8")
        return tomllib.loads(text)["project"]

    @property
    def version(self) -> str:
        return self.project["version"]

    @property
    def tag(self) -> str:
        return f"{self.name}/v{self.version}"

    @cached_property
    def requirements(self) -> list[Requirement]:
        """The dependencies, and those of all extras."""
        extras: Mapping[str, list[str]] = self.project.get("optional-dependencies", {})
        lists = [self.project.get("dependencies", []), *extras.values()]
        return [Requirement(text) for listed in lists for text in listed]

    def read_changes(self) -> str | None:
        """Return what the changelog has below the heading of this version; None without one."""
        text = (self.folder / "CHANGELOG.md").read_text(encoding="utf-8")
        heading = rf"^## {re.escape(self.version)}(?: \([^)\n]*\))?\n(.*?)(?=^## |\Z)"
        found = re.search(heading, text, re.MULTILINE | re.DOTALL)
        return None if found is None else found[1].strip()


def read_packages(root: Path) -> dict[str, Package]:
    files = sorted(root.glob("packages/*/pyproject.toml"))
    return {file.parent.name: Package(file.parent) for file in files}


def choose(names: Sequence[str], packages: Mapping[str, Package]) -> list[Package]:
    """Return the named packages, all if none is named, in the order of upload.

    Raises:
        ValueError: there is no package of a name.
    """
    if unknown := sorted(set(names) - packages.keys()):
        raise ValueError(f"no package {unknown[0]!r}; there are {', '.join(packages)}")
    chosen = set(names or packages)
    needs = {
        name: {needed.name for needed in packages[name].requirements} & chosen for name in chosen
    }
    return [packages[name] for name in TopologicalSorter(needs).static_order()]


def find_problems(
    package: Package, chosen: Iterable[Package], packages: Mapping[str, Package], tags: set[str]
) -> Iterator[str]:
    """Yield why `package` can't be released beside `chosen`, where `tags` were released before."""
    changes = package.read_changes()
    if changes is None:
        yield (
            f"CHANGELOG.md has no heading '## {package.version}'; tools/release.py bump writes one"
        )
    elif not changes:
        yield f"CHANGELOG.md has nothing below '## {package.version}'; write what changed for users"
    licence = package.folder / "LICENSE"
    if not licence.is_file():
        yield "it has no file LICENSE; copy the one of the root"
    elif licence.read_bytes() != (package.folder.parents[1] / "LICENSE").read_bytes():
        yield "its LICENSE differs from that of the root; copy that one"
    if any(name.startswith("Private ::") for name in package.project.get("classifiers", [])):
        yield "its classifier 'Private ::' keeps it off an index; remove it once it is usable"
    yield from find_problems_of_requirements(package, chosen, packages, tags)


def find_problems_of_requirements(
    package: Package, chosen: Iterable[Package], packages: Mapping[str, Package], tags: set[str]
) -> Iterator[str]:
    """Yield why what `package` requires can't be had from an index after the upload."""
    together = {other.name for other in chosen}
    for needed in package.requirements:
        if needed.url is not None:
            yield f"it requires {needed.name} from an address, which an index refuses; give a range"
        if (other := packages.get(needed.name)) is None:
            continue
        if not needed.specifier.contains(other.version, prereleases=True):
            yield (
                f"it requires {needed}, and the tree has {other.name} {other.version}; change the "
                "range, or release another version"
            )
        elif other.name not in together and other.tag not in tags:
            yield (
                f"it requires {needed}, and {other.name} {other.version} has no tag; release both: "
                f"tools/release.py tag {other.name} {package.name}"
            )


def find_files(archive: Path) -> list[str]:
    """Return the names of the files in a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as sdist:
        return [member.name for member in sdist.getmembers() if member.isfile()]


def find_missing_files(archives: Iterable[Path]) -> Iterator[str]:
    """Yield what a wheel or an sdist lacks."""
    for archive in archives:
        files = find_files(archive)
        for wanted in ("LICENSE", "py.typed"):
            if not any(name.rpartition("/")[2] == wanted for name in files):
                yield f"{archive.name} has no {wanted}"


def run(command: Sequence[str], root: Path) -> str:
    """Run a command and return what it printed.

    Raises:
        ValueError: it failed; what it printed is in the message.
    """
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(package: Package, root: Path) -> list[Path]:
    """Build a package's wheel and sdist into dist/ and return both."""
    name = f"{package.name.replace('-', '_')}-{package.version}"
    for old in (root / "dist").glob(f"{name}*"):
        old.unlink()
    run(["uv", "build", "--quiet", "--package", package.name, "--out-dir", "dist"], root)
    return sorted((root / "dist").glob(f"{name}*"))


def check(names: Sequence[str], root: Path) -> list[Package]:
    """Check and build packages; return them in the order of upload.

    Raises:
        ValueError: a package can't be released; each reason is a line.
    """
    packages = read_packages(root)
    chosen = choose(names, packages)
    tags = set(run(["git", "tag", "--list", "*/v*"], root).split())
    problems = [
        f"{package.name}: {problem}"
        for package in chosen
        for problem in find_problems(package, chosen, packages, tags)
    ]
    if problems:
        raise ValueError("\n".join(problems))
    archives = [archive for package in chosen for archive in build(package, root)]
    if missing := list(find_missing_files(archives)):
        raise ValueError("\n".join(missing))
    wheels = [str(path) for path in archives if path.suffix == ".whl"]
    run(["uvx", "--from", TWINE, "twine", "check", "--strict", *map(str, archives)], root)
    run(["uvx", CONTENTS.partition(">")[0] + "@0.6.3", *wheels], root)
    return chosen


def bump(name: str, part: str, root: Path) -> str:
    """Write the next version of a package and a heading for it; return the version."""
    (package,) = choose([name], read_packages(root))
    changelog = package.folder / "CHANGELOG.md"
    old = changelog.read_text(encoding="utf-8")
    run(["uv", "version", "--quiet", "--frozen", "--package", name, "--bump", part], root)
    version = Package(package.folder).version
    title, _, rest = old.partition("\n## ")
    changelog.write_text(f"{title}\n## {version} {UNRELEASED}\n\n## {rest}", encoding="utf-8")
    return version


def tag(names: Sequence[str], root: Path) -> list[str]:
    """Date the changelogs' headings, commit, and tag each package; return the tags.

    Raises:
        ValueError: a package can't be released, the tree has changes, or the project's address
            isn't ours yet.
    """
    root_project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    address = root_project["tool"]["evalution"]["release"]
    if not address["claimed"]:
        raise ValueError(
            f"{address['repository']} isn't claimed yet, and every package names it; claim it, or "
            "choose another address, and set claimed = true in the root's pyproject.toml"
        )
    if run(["git", "status", "--porcelain", "--untracked-files=no"], root):
        raise ValueError("the tree has changes that aren't committed; commit them first")
    chosen = check(names, root)
    for package in chosen:
        changelog = package.folder / "CHANGELOG.md"
        text = changelog.read_text(encoding="utf-8")
        heading = f"## {package.version} "
        dated = text.replace(f"{heading}{UNRELEASED}", f"{heading}({date.today()})", 1)
        changelog.write_text(dated, encoding="utf-8")
    if run(["git", "status", "--porcelain", "--untracked-files=no"], root):
        listed = ", ".join(f"{package.name} {package.version}" for package in chosen)
        run(["git", "commit", "--quiet", "--all", "--message", f"Release of {listed}"], root)
    for package in chosen:
        run(["git", "tag", package.tag], root)
    return [package.tag for package in chosen]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, least in (("check", "*"), ("order", "+"), ("tag", "+")):
        verbs.add_parser(verb).add_argument("names", nargs=least)
    bumped = verbs.add_parser("bump")
    bumped.add_argument("name")
    bumped.add_argument("part", choices=["patch", "minor", "major"])
    asked = parser.parse_args(arguments)
    try:
        match asked.verb:
            case "check":
                lines = [f"{p.name} {p.version}" for p in check(asked.names, root)]
            case "order":
                lines = [p.name for p in choose(asked.names, read_packages(root))]
            case "bump":
                lines = [bump(asked.name, asked.part, root)]
                run(["uv", "lock", "--quiet"], root)
            case _:
                made = tag(asked.names, root)
                lines = [*made, f"next: git push origin HEAD {' '.join(made)}"]
    except ValueError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
