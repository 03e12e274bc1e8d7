"""A release of two packages, rehearsed on a copy of the tree; and what stops one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

import release

ROOT = Path(__file__).parents[1]

BUILT = ["evalution-core", "evalution-enginekit", "evalution-vllm"]
RELEASED = ["evalution-core", "evalution-vllm"]


@pytest.fixture(scope="module")
def bumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the packages' descriptions and the sources of three, two of them bumped."""
    root = tmp_path_factory.mktemp("bumped")
    for name in ("pyproject.toml", "uv.lock", "LICENSE"):
        shutil.copyfile(ROOT / name, root / name)
    for folder in (ROOT / "packages").iterdir():
        target = root / "packages" / folder.name
        target.mkdir(parents=True)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
            shutil.copyfile(folder / name, target / name)
        if folder.name in BUILT:
            shutil.copytree(
                folder / "src", target / "src", ignore=shutil.ignore_patterns("__pycache__")
            )
    git(root, "init", "--quiet", "--template=")
    commit(root)
    for name in BUILT:
        git(root, "tag", release.Package(root / "packages" / name).tag)
    for name, version in zip(RELEASED, ("1.0.1", "0.1.1"), strict=True):
        assert release.bump(name, "patch", root) == version
        changelog = root / "packages" / name / "CHANGELOG.md"
        heading = f"## {version} (not released)\n"
        replace(changelog, heading, f"{heading}\n- A.\n")
    commit(root)
    return root


@pytest.fixture
def tree(bumped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bumped, tmp_path / "tree")


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=Anne", "-c", "user.email=anne@example.org"]
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def commit(root: Path) -> None:
    git(root, "config", "user.name", "Anne")
    git(root, "config", "user.email", "anne@example.org")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "A change")


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.wide  # builds two packages and their sources
def test_two_packages_are_bumped_checked_built_and_tagged(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(tree / "pyproject.toml", "claimed = false", "claimed = true")
    commit(tree)
    assert release.main(["tag", *reversed(RELEASED)], tree) == 0
    tags = ["evalution-core/v1.0.1", "evalution-vllm/v0.1.1"]
    printed = capsys.readouterr().out.splitlines()
    assert printed == [*tags, f"next: git push origin HEAD {' '.join(tags)}"]
    assert set(tags) < set(git(tree, "tag").split())
    assert len(list((tree / "dist").glob("*.whl"))) == len(RELEASED)
    changelog = (tree / "packages" / "evalution-vllm" / "CHANGELOG.md").read_text("utf-8")
    assert f"## 0.1.1 ({date.today()})\n\n- A.\n" in changelog
    assert not git(tree, "status", "--porcelain", "--untracked-files=no")


def no_heading(root: Path) -> None:
    replace(root / "packages" / "evalution-core" / "CHANGELOG.md", "## 1.0.1", "## Next")


def empty_changes(root: Path) -> None:
    replace(root / "packages" / "evalution-core" / "CHANGELOG.md", "\n- A.\n", "")


def no_licence(root: Path) -> None:
    (root / "packages" / "evalution-vllm" / "LICENSE").unlink()


def other_licence(root: Path) -> None:
    (root / "packages" / "evalution-vllm" / "LICENSE").write_text("Do what you like.")


def require(line: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        file = root / "packages" / "evalution-vllm" / "pyproject.toml"
        replace(file, "dependencies = [\n", f'dependencies = [\n    "{line}",\n')

    return change


def private(root: Path) -> None:
    file = root / "packages" / "evalution-vllm" / "pyproject.toml"
    replace(file, '    "Typing :: Typed",\n', '    "Private :: Do Not Upload",\n')


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (no_heading, "evalution-core: CHANGELOG.md has no heading '## 1.0.1'"),
        (empty_changes, "evalution-core: CHANGELOG.md has nothing below '## 1.0.1'"),
        (no_licence, "evalution-vllm: it has no file LICENSE; copy the one of the root"),
        (other_licence, "evalution-vllm: its LICENSE differs from that of the root"),
        (
            require("vllm @ https://example.org/vllm.whl"),
            "evalution-vllm: it requires vllm from an address, which an index refuses",
        ),
        (
            require("evalution-enginekit>=0.2,<0.3"),
            "evalution-vllm: it requires evalution-enginekit<0.3,>=0.2, and the tree has "
            "evalution-enginekit 0.1.0; change the range",
        ),
        (
            require("evalution-reference>=0.1,<0.2"),
            "and evalution-reference 0.1.0 has no tag; release both: tools/release.py tag "
            "evalution-reference evalution-vllm",
        ),
        (private, "evalution-vllm: its classifier 'Private ::' keeps it off an index"),
    ],
)
def test_what_can_not_be_released_stops_with_a_sentence(
    tree: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], sentence: str
) -> None:
    change(tree)
    assert release.main(["check", *RELEASED], tree) == 1
    assert sentence in capsys.readouterr().err
    assert not (tree / "dist").exists()


def test_nothing_is_tagged_before_the_address_is_ours(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["tag", "evalution-core"], tree) == 1
    assert "isn't claimed yet, and every package names it; claim it" in capsys.readouterr().err


def test_changes_that_are_not_committed_stop_a_tag(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(tree / "pyproject.toml", "claimed = false", "claimed = true")
    assert release.main(["tag", "evalution-core"], tree) == 1
    assert "the tree has changes that aren't committed" in capsys.readouterr().err


def test_an_unknown_package_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["order", "evalution-zml"]) == 1
    assert (
        "no package 'evalution-zml'; there are evalution-conformance, " in capsys.readouterr().err
    )


def test_every_package_comes_after_those_that_it_requires() -> None:
    packages = release.read_packages(ROOT)
    seen: set[str] = set()
    for package in release.choose([], packages):
        assert {needed.name for needed in package.requirements} & packages.keys() <= seen
        seen.add(package.name)
    assert seen == packages.keys()
