"""Run everything that a CPU machine can run, or one environment of it.

    uv run tools/ci.py                    all stages; `.ci/run` does this on a bare machine
    uv run tools/ci.py list               the environments, and what runs in each
    uv run tools/ci.py build vllm         make .venv-vllm
    uv run tools/ci.py test vllm -k name  run its tests in it, with arguments for pytest

An environment is a requirements file of `tools/envs`, the light members of the root's
`pyproject.toml`, and the members that declare it in their own (`[[tool.evalution.environments]]`).
A stage that fails lets the others run; the table at the end names it, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from members import (
    Environment,
    light_members,
    pyright_settings,
    read_environments,
    typed_members,
    unique,
)
from stages import Stages

ROOT = Path(__file__).parents[1]
TORCH, ZIZMOR = "2.13.0", "1.32.0"
PROGRAMS = {
    "g++": ("c++",),
    "chromium": ("chromium", "chromium-browser", "google-chrome", "chrome"),
}
"""System packages that an environment may ask for, and the programs that stand for each."""
OTHER_PYTHONS = ("3.12", "3.13")
ON_OTHER_PYTHONS = [
    "packages/evalution-core",
    "packages/evalution-enginekit",
    "packages/evalution-openai/tests/server",
    *(
        f"packages/evalution-runner/tests/{part}"
        for part in ("cli", "journal", "runs", "spec", "workers")
    ),
    "--ignore=packages/evalution-enginekit/tests/test_request_session_conformance.py",
    "--ignore=packages/evalution-enginekit/tests/test_template_sandbox.py",
    "--ignore=packages/evalution-runner/tests/workers/test_replicas_conformance.py",
]
"""Tests of what a version of Python changes: processes, threads, event loops, files, annotations.

GitHub's workflow runs all light tests on each; templates and conformance take the longest.
"""
GPU_REHEARSAL = [
    *("-m", "tools.gpu", "all", "--rehearse", "--fresh", "--work", "build/gpu/rehearsal"),
]
"""Every stage of docs/gpu.md at tiny sizes, the bundle's assembly included."""
FUZZ = ["nice", "-n", "10", "uv", "run", "tools/fuzz.py", "--seed", "1", "--seconds", "520"]
"""A minute of processor time for a parser, which other stages leave; 20 s for two of the ten."""
FEWER_EXAMPLES = "--hypothesis-profile=again"
"""For tests that the first light run has tried with more."""
PUBLISHED = ["uv", "run", "pytest", "-m", "wide", "-n", "0", "tests/test_published.py"]
"""Not parallel: one index serves all of it. uv must have compiled llama.cpp before."""
IN_LANE = "--numprocesses=1"
"""An option of the stage's own pytest: those that its tests start may not know it."""
LANE_BYTES = 6e9
"""Memory that a machine must have for each lane; three of them were seen to take 6 GB."""
NO_VERSIONS = [
    "--ignore=packages/evalution-conformance/tests",
    "--ignore=packages/evalution-openai/tests/test_openai_conformance.py",
    "--ignore=packages/evalution-runner/tests/workers",
]
"""Left out where dependencies have their lowest versions: what uses core and the kit alone."""


def read_light() -> set[str]:
    """Return the members that `uv run pytest` installs: the root's own dependencies."""
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {name.partition("[")[0] for name in root["project"]["dependencies"]}


def require_light() -> dict[str, str]:
    return {"EVALUTION_REQUIRE": " ".join(sorted(read_light()))}


def find_python(version: str = "") -> str:
    """Return a Python of this version, of PATH or of pyenv, that starts; else this process's own.

    Raises:
        RuntimeError: there is none.
    """
    if not version:
        return sys.executable
    candidates = [f"python{version}"]
    if shutil.which("pyenv"):  # its shims on PATH start only for a version that is chosen
        known = read_output(["pyenv", "latest", version])
        candidates.append(f"{read_output(['pyenv', 'prefix', known])}/bin/python")
    for candidate in candidates:
        if found := read_output([candidate, "-c", "import sys; print(sys.executable)"]):
            return found
    raise RuntimeError(f"no Python {version}: none of {', '.join(candidates)} starts")


def read_output(command: list[str]) -> str:
    """Return what a command prints, empty if it fails or isn't there."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def torch_command(python: Path) -> list[str]:
    """Return the command that installs a CPU build of torch.

    The index's own build for Linux brings 3 GB of CUDA libraries. A folder of wheels that
    PIP_FIND_LINKS names comes first, then PyTorch's index.
    """
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", str(python)]
    if folders := os.environ.get("PIP_FIND_LINKS", "").split():
        links = [part for folder in folders for part in ("--find-links", folder)]
        return [*install, *links, f"torch=={TORCH}+cpu"]
    backend = ["--torch-backend", "cpu"] if sys.platform == "linux" else []
    return [*install, *backend, f"torch=={TORCH}"]


def build_commands(environment: Environment) -> Iterator[list[str]]:
    """Yield the commands that make an environment; packages come from uv's cache if it has them.

    The hashed file is complete but for torch, hence `--no-deps`; `--no-config`, because the root's
    constraints are for the lock alone.
    """
    administrator = [] if os.geteuid() == 0 else ["sudo"]
    if missing := [
        name for name in environment.system if not any(map(shutil.which, PROGRAMS[name]))
    ]:
        yield [*administrator, "apt-get", "-qq", "update"]
        install = ["apt-get", "-qq", "install", "--yes", "--no-install-recommends"]
        yield [*administrator, *install, *missing]
    folder = environment.folder
    if not environment.requirements.is_file():
        names = ["evalution-workspace", *environment.members]  # the root, for its tools
        packages = [f"--package={name}" for name in names]
        yield ["uv", "sync", "--quiet", *packages]
        return
    yield ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)]
    install = ["uv", "pip", "install", "--no-config", "--quiet", "--no-deps"]
    install += ["--python", str(folder)]
    yield [*install, "--require-hashes", "-r", f"tools/envs/{environment.name}.txt"]
    yield [*install, *(f"--editable=packages/{member}" for member in environment.members)]
    if environment.torch:
        yield torch_command(folder)


def lowest_commands() -> Iterator[list[str]]:
    """Yield the commands that make `.venv-lowest`: each dependency at its lowest version.

    The extras `hf` and `datasets` stay out: their packages would raise the floors of the others.
    """
    extras = {
        "evalution-runner": "[excel,parquet,text,view]",
        "evalution-enginekit": "[tokenizers]",
    }
    members = [f"--editable=packages/{name}{extras.get(name, '')}" for name in light_members()]
    yield ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, ".venv-lowest"]
    install = ["uv", "pip", "install", "--quiet", "--python", ".venv-lowest"]
    tools = ["hypothesis>=6.125", "jsonschema>=4.23", "pytest-timeout>=2.4", "pytest-xdist>=3.8"]
    yield [*install, "--resolution", "lowest-direct", *members, *tools]


def run_quietly(
    commands: Iterator[list[str]], variables: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run commands until one fails; return its exit status and what was printed."""
    printed: list[str] = []
    for command in commands:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **(variables or {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        except OSError as error:
            return 127, f"{error}\n"
        printed.append(f"+ {' '.join(command)}\n{done.stdout}")
        if done.returncode:
            return done.returncode, "".join(printed)
    return 0, "".join(printed)


def make_environment(environment: Environment) -> tuple[int, str]:
    place = {"UV_PROJECT_ENVIRONMENT": str(environment.folder), **environment.variables}
    return run_quietly(build_commands(environment), place)


def share_bytecode(folder: Path) -> None:
    """Let an environment use the bytecode of the others that hold the same releases.

    Python keeps bytecode by the path of the sources, so that each would compile torch for itself.
    """
    kept = Path(os.environ["PYTHONPYCACHEPREFIX"])
    for record in folder.glob("lib/python*/site-packages/*.dist-info/RECORD"):
        packages, release = record.parents[1], record.parent.stem
        names = {line.partition("/")[0] for line in record.read_text("utf-8").splitlines()}
        for name in names - {"..", record.parent.name}:
            own = kept / str(packages / name).lstrip("/")
            shared = kept / "releases" / release / name
            if (packages / name).is_dir() and not own.exists():
                shared.mkdir(parents=True, exist_ok=True)
                own.parent.mkdir(parents=True, exist_ok=True)
                own.symlink_to(shared)


def test_command(environment: Environment, further: Sequence[str]) -> list[str]:
    """Return the command that runs an environment's tests, or those that `further` names."""
    pytest = str(environment.folder / "bin" / "pytest")
    names_tests = any((ROOT / word.partition("::")[0]).exists() for word in further)
    tests = [] if names_tests else environment.tests
    return [pytest, "-m", "not gpu and not hub", *environment.arguments, *further, *tests]


def required(environment: Environment) -> dict[str, str]:
    names = [*environment.members, *environment.requires, *(["torch"] if environment.torch else [])]
    return {"EVALUTION_REQUIRE": " ".join(unique(names))}


def run_all() -> int:
    """Run every stage: the README's two commands first, and beside the second the others, in lanes.

    A lane runs one stage after the other, most with one process of pytest: what a stage has in
    common is made once, and while some wait for a server, others compute. The fuzzing has no lane,
    and takes the time that those leave.
    """
    os.environ |= {"UV_LOCKED": "1", "CI": "true"}
    # Processes of all stages share bytecode; many of them import torch.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "bytecode")
    # A test that hangs ends its run, with where each thread stands.
    os.environ["PYTEST_ADDOPTS"] = (
        "--durations=10 -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true"
    )
    stages = Stages()
    environments = read_environments()
    # The builds wait for the network more than for the processor, and follow one another; the
    # compilation of llama.cpp takes minutes, and has a thread of its own.
    with (
        ThreadPoolExecutor(1) as compiling,
        ThreadPoolExecutor(1) as building,
        ThreadPoolExecutor(1) as fuzzing,
        ThreadPoolExecutor(count_lanes()) as lanes,
    ):
        lowest = building.submit(run_quietly, lowest_commands())
        builds = {
            name: (compiling if environment.system == ["g++"] else building).submit(
                make_environment, environment
            )
            for name, environment in environments.items()
        }
        quickstart = ["uv", "run", "evalution", "run", "docs/examples/quickstart.yaml"]
        stages.run("quickstart", quickstart, require_light())
        tasks: list[Callable[[], object]] = [
            partial(stages.run, "light", ["uv", "run", "pytest"], require_light(), is_beside=True),
            *list_light(stages),
            *(partial(run_python, stages, version) for version in OTHER_PYTHONS),
            partial(run_lowest, stages, lowest),
            *(
                partial(run_environment, stages, environments[name], builds[name])
                for name in builds
            ),
            partial(run_matrix, stages, builds),
        ]
        fuzzed = fuzzing.submit(stages.run, "fuzz", FUZZ, is_beside=True)
        for done in [*map(lanes.submit, tasks), fuzzed]:
            done.result()
    return stages.close()


def count_lanes() -> int:
    """Return how many stages run at once: one more than cores, up to what memory holds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)) + 1, int(memory / LANE_BYTES)))


def list_light(stages: Stages) -> Iterator[Callable[[], object]]:
    """Yield the further stages of the light environment."""

    def run(name: str, command: Sequence[str], **variables: str) -> Callable[[], object]:
        return partial(stages.run, name, command, variables, is_beside=True)

    pytest = ["uv", "run", "pytest", IN_LANE]
    yield run("check", ["uv", "run", "tools/check.py"])
    zizmor = ["uvx", f"zizmor=={ZIZMOR}", "--offline", "--quiet", "--persona=auditor", ".github"]
    yield run("workflows", zizmor)
    yield run("upstream signatures", ["uv", "run", "tools/check_upstream_api.py"])
    yield run("planted drift", [*pytest, "-m", "wide", "tests/test_planted_drift.py"])
    site = ["uv", "run", "--only-group", "docs", "tools/docs_site.py"]
    yield run("site", site, UV_PROJECT_ENVIRONMENT=str(ROOT / ".venv-docs"))
    # Two processes: in one, beside two other stages, it takes more than its five minutes.
    faults = ["uv", "run", "pytest", "-n", "2", "-m", "faults", "tests/faults"]
    yield run("faults", faults, **require_light())
    pages = ("first_commands", "git_install", "recording", "release", "standalone_wheels")
    shown = [f"tests/test_{page}.py" for page in pages]
    yield run("first commands", [*pytest, "-m", "wide", *shown])


def run_python(stages: Stages, version: str) -> None:
    """Run light tests on another version of Python."""
    name, folder = f"light on {version}", ROOT / f".venv-{version}"
    light = require_light()
    try:
        sync = ["uv", "sync", "--quiet", "--python", find_python(version)]
    except RuntimeError as error:
        print(error, flush=True)
        stages.add(name, 0, passed=False)
        return
    variables = {**light, "UV_PROJECT_ENVIRONMENT": str(folder)}
    if stages.run(f"build {version}", sync, variables, is_beside=True):
        command = [str(folder / "bin" / "pytest"), IN_LANE, FEWER_EXAMPLES, *ON_OTHER_PYTHONS]
        stages.run(name, command, light, is_beside=True)


def run_environment(
    stages: Stages, environment: Environment, build: Future[tuple[int, str]]
) -> None:
    """Run the tests of an environment, and what else needs it."""
    name, python = environment.name, str(environment.folder / "bin" / "python")
    if not is_built(stages, name, build):
        return
    share_bytecode(environment.folder)
    pytest, *arguments = test_command(environment, [])
    stages.run(name, [pytest, IN_LANE, *arguments], required(environment), is_beside=True)
    check_types(stages, environment)
    if name == "gguf":
        stages.run("published", PUBLISHED, is_beside=True)
    if name == "torch":
        check = [python, "tools/train_tiny_model.py", "--check"]
        stages.run("tiny model", check, is_beside=True)
    if name == "lm-eval":
        stages.run("stages of a GPU", [python, *GPU_REHEARSAL], is_beside=True)


def run_lowest(stages: Stages, build: Future[tuple[int, str]]) -> None:
    """Run the tests of the light packages with their dependencies' lowest versions."""
    light = {"EVALUTION_REQUIRE": " ".join(light_members())}
    if is_built(stages, "lowest", build):
        command = [".venv-lowest/bin/pytest", IN_LANE, FEWER_EXAMPLES, "packages", *NO_VERSIONS]
        stages.run("lowest", command, light, is_beside=True)


def run_matrix(stages: Stages, builds: Mapping[str, Future[tuple[int, str]]]) -> None:
    """Hold the engines of all environments against each other, once these are built."""
    for build in builds.values():
        build.result()
    matrix = ["uv", "run", "tools/fidelity_matrix.py"]
    stages.run("fidelity matrix", matrix, is_beside=True)


def is_built(stages: Stages, name: str, build: Future[tuple[int, str]]) -> bool:
    """Wait for a build; a failed one is a stage of its own, with what it printed."""
    start = time.monotonic()
    status, printed = build.result()
    if status:
        print(printed, flush=True)
        stages.add(f"build {name}", time.monotonic() - start, passed=False)
    return status == 0


def check_types(stages: Stages, environment: Environment) -> None:
    """Run pyright over the members whose types need this environment."""
    if environment.name not in typed_members():
        return
    settings = ROOT / f".pyright-{environment.name}.json"
    settings.write_text(pyright_settings(environment.name), encoding="utf-8")
    python = str(environment.folder / "bin" / "python")
    command = ["uv", "run", "pyright", "--project", settings.name, "--pythonpath", python]
    stages.run(f"{environment.name} types", command, is_beside=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", nargs="?", default="all", choices=["all", "list", "build", "test"])
    parser.add_argument("environment", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for pytest")
    chosen = parser.parse_args()
    environments = read_environments()
    if chosen.verb == "all":
        return run_all()
    if chosen.verb == "list":
        for name, environment in environments.items():
            print(f"{name:20} {' '.join(environment.tests)}")
        return 0
    if chosen.environment not in environments:
        parser.error(f"no environment {chosen.environment}; there are {', '.join(environments)}")
    environment = environments[chosen.environment]
    if chosen.verb == "build":
        status, printed = make_environment(environment)
        print(printed, end="")
        return status
    if not environment.folder.is_dir():
        parser.error(
            f"{environment.folder.name} is not built: tools/ci.py build {environment.name}"
        )
    command = test_command(environment, chosen.arguments)
    return subprocess.call(command, cwd=ROOT, env={**os.environ, **required(environment)})


if __name__ == "__main__":
    sys.exit(main())
