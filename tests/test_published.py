"""All packages, published to an index on this machine, are installed from it by name and used.

Each engine is installed alone; then come the three users for whom packages are split: a Python
program without the runner, a machine with neither torch nor a compiler's time, and a vendor with a
package of its own. A line for each says how many packages and megabytes it took.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

import local_index
from ci import share_bytecode

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.wide, pytest.mark.timeout(900)]

PACKAGES = ROOT / "packages"
TINY = PACKAGES / "evalution-reference" / "src" / "evalution_reference" / "data" / "tiny"
VENDOR = ROOT / "docs" / "examples" / "vendor" / "evalution-ctranslate2"
INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
FOLDERS = os.environ.get("PIP_FIND_LINKS", "").split()
CPU_TORCH = [part for folder in FOLDERS for part in ("--find-links", folder)]
"""Folders with a CPU build of torch; without one, uv takes it from PyTorch's index."""
WITHOUT_TORCH = [
    "evalution-llama-cpp",
    "evalution-ray",
    "evalution-reference",
    "evalution-tinygrad",
]
EXAMPLE_NEEDS = {
    "evalution-openai": "a server",
    "evalution-tensorrt-llm": "TensorRT-LLM, which this package installs on Python 3.12 alone",
    "evalution-tinker": "a server",
}
BY_GPU = ["evalution-sglang", "evalution-vllm"]
"""Engines whose runtime comes with CUDA: by their names alone, they are resolved only."""


@dataclass(frozen=True)
class Place:
    """An empty environment that installs from the index."""

    folder: Path
    index: str

    @property
    def programs(self) -> Path:
        return self.folder / "venv" / "bin"

    def install(self, *words: str) -> None:
        """Run the words after `uv pip install`, for this environment."""
        # The archives of a name may be others than those of an earlier run.
        fresh = [f"--refresh-package={path.name}" for path in PACKAGES.iterdir()]
        index = ["--index", f"{self.index}/simple/", "--python", str(self.folder / "venv")]
        self.run("uv", "pip", "install", "--quiet", "--no-config", *fresh, *index, *words)
        if "PYTHONPYCACHEPREFIX" in os.environ:
            share_bytecode(self.folder / "venv")

    def take_compiled(self, name: str) -> None:
        """Install a package as an earlier build left it in uv's cache, if one did.

        Asked online, uv compiles it again where an index forbids to keep its answers.
        """
        words = ["--quiet", "--no-config", "--offline", "--no-deps", name]
        command = ["uv", "pip", "install", "--python", str(self.folder / "venv"), *words]
        subprocess.run(command, capture_output=True, check=False)

    def run(self, *command: str, variables: Mapping[str, str] | None = None, **options: str) -> str:
        """Run a command, a program of the environment first, and return what it printed."""
        own = shutil.which(command[0], path=str(self.programs)) or command[0]
        away = {"PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"}
        done = subprocess.run(
            [own, *command[1:]],
            cwd=self.folder,
            env={
                **{key: value for key, value in os.environ.items() if key not in away},
                "HF_HUB_OFFLINE": "1",
                "NO_PROXY": "127.0.0.1",
                "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
                # As in the environment `gguf`, which has compiled llama.cpp before.
                "CMAKE_ARGS": "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF",
                **(variables or {}),
            },
            capture_output=True,
            text=True,
            check=False,
            **options,  # pyright: ignore[reportCallIssue, reportArgumentType]
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def list_packages(self) -> list[str]:
        listed = self.run("uv", "pip", "list", "--format", "json", "--python", "venv")
        return [found["name"] for found in json.loads(listed)]

    def size(self) -> str:
        kibibytes = int(self.run("du", "-sk", "venv").split()[0])
        return f"{len(self.list_packages()):4} packages {kibibytes / 1000:7,.0f} MB installed"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with local_index.serve_index(tmp_path_factory.mktemp("index")) as address:
        names = local_index.publish_members(address, tmp_path_factory.mktemp("built"))
        assert names[0] == "evalution-core"
        assert sorted(names) == sorted(path.name for path in PACKAGES.iterdir())
        yield address


@pytest.fixture
def place(index: str, tmp_path: Path) -> Place:
    place = Place(tmp_path, index)
    place.run("uv", "venv", "--quiet", "--python", sys.executable, "venv")
    return place


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    lines: dict[str, str] = {}
    yield lines
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print(*(f"\n{name:36} {line}" for name, line in lines.items()), sep="")


def find_example(member: str) -> str:
    """Return the first spec of a package's README."""
    page = (PACKAGES / member / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```yaml title=run.yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found, member
    return found[1]


def find_cpu_line(member: str) -> list[str]:
    """Return what docs/install.md says to install on a machine without a GPU."""
    (row,) = (line for line in INSTALL.splitlines() if line.startswith("| ") and member in line)
    by_uv, by_pip = re.findall(r"`(?:uv )?pip install ([^`]+)`", row)
    chosen = by_pip.replace("FOLDER", FOLDERS[0]) if FOLDERS else by_uv
    return [word.strip('"') for word in chosen.split()]


def run_example(place: Place, member: str, model: str = "builtin:tiny") -> None:
    """Run the README's spec, on this model where it names one that isn't there."""
    spec = find_example(member).replace("owner/name-4bit", model)
    assert f"model: {model}" in spec
    (place.folder / "run.yaml").write_text(spec, encoding="utf-8")
    place.run("evalution", "run", "run.yaml", "--output", "out")
    results = json.loads((place.folder / "out" / "results.json").read_text(encoding="utf-8"))
    (suite,) = results["suites"]
    # A byte of chance costs eight bits.
    assert suite["metrics"]["bits_per_byte"]["value"] < 0.5


@pytest.mark.parametrize("member", [*WITHOUT_TORCH, *EXAMPLE_NEEDS])
def test_engine_is_installed_alone_by_name(
    member: str, place: Place, table: dict[str, str]
) -> None:
    if member == "evalution-llama-cpp":
        place.take_compiled("llama-cpp-python")
    place.install(member)
    table[member] = place.size()
    assert "torch" not in place.list_packages()
    place.install(member, "evalution-runner", "evalution-reference")
    assert member in place.run("evalution", "engines", "--json")
    if member in WITHOUT_TORCH:
        run_example(place, member)


@pytest.mark.parametrize("member", ["evalution-transformers", "evalution-openvino"])
def test_engine_on_torch_is_installed_by_its_line_for_a_cpu(
    member: str, place: Place, table: dict[str, str]
) -> None:
    words = [*find_cpu_line(member), "evalution-reference"]
    if is_missing := not any(any(Path(folder).glob("torchvision-*")) for folder in FOLDERS):
        words = [word for word in words if not word.startswith("torchvision==")]
    place.install(*words)
    if FOLDERS and is_missing:  # as the README says, for what then comes from the index
        place.run("uv", "pip", "uninstall", "--quiet", "--python", "venv", "torchvision")
    table[f"{member}, its line for a CPU"] = place.size()
    assert not [name for name in place.list_packages() if name.startswith("nvidia-")]
    run_example(place, member)


QUANTIZE = """
import json
from pathlib import Path
from gptqmodel import GPTQModel, QuantizeConfig

tiny = Path({path!r})
rows = (tiny / "rows" / "prose.jsonl").read_text("utf-8").splitlines()
# The default of pack_impl compiles C++ first.
how = {{"bits": 4, "group_size": 32, "pack_impl": "original", "offload_to_disk": False}}
made = GPTQModel.load(str(tiny), QuantizeConfig(**how, device="cpu"))
made.quantize([json.loads(row)["text"] for row in rows], batch_size=4)
made.save("quantized")
"""


def test_gptqmodel_is_installed_by_its_line_for_a_cpu(place: Place, table: dict[str, str]) -> None:
    place.install(*find_cpu_line("evalution-gptqmodel"), "evalution-reference")
    table["evalution-gptqmodel, its line for a CPU"] = place.size()
    assert not [name for name in place.list_packages() if name.startswith("nvidia-")]
    (place.folder / "quantize.py").write_text(QUANTIZE.format(path=str(TINY)), encoding="utf-8")
    # On two cores it gives itself one worker, and asks it for two.
    place.run("python", "quantize.py", variables={"GPTQMODEL_CPU_WORKERS": "2"})
    run_example(place, "evalution-gptqmodel", "quantized")


@pytest.mark.parametrize("member", BY_GPU)
def test_engine_that_brings_cuda_is_resolved_by_name(
    member: str, place: Place, table: dict[str, str]
) -> None:
    index = ["--index", f"{place.index}/simple/", "--no-config", "--quiet"]
    shape = ["--format", "pylock.toml", "--output-file", "pylock.toml"]
    place.run("uv", "pip", "compile", "-", *index, *shape, input=member)
    found = tomllib.loads((place.folder / "pylock.toml").read_text("utf-8"))["packages"]
    assert {"evalution-core", member, "torch"} <= {package["name"] for package in found}
    megabytes = sum(map(measure_download, found)) / 1e6
    table[member] = f"{len(found):4} packages {megabytes:7,.0f} MB to download, with CUDA"


def measure_download(package: Mapping[str, object]) -> int:
    """Return the bytes of the archive that this machine would take."""
    wheels: list[dict[str, object]] = package.get("wheels", [])  # pyright: ignore[reportAssignmentType]
    fitting = set(sys_tags())
    for wheel in wheels:
        name = str(wheel.get("name") or str(wheel["url"]).rpartition("/")[2]).partition("#")[0]
        if parse_wheel_filename(name.replace("%2B", "+"))[3] & fitting:
            return int(str(wheel.get("size", 0)))
    return 0


PROGRAM = """
import importlib.util
from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_vllm import VLLM

if __name__ == "__main__":
    assert importlib.util.find_spec("evalution") is None
    engine = VLLM(dtype="float32", enforce_eager=True)
    with engine.build(Model({path!r})) as session:
        asked = "Question: 3 + 4 = ?\\nAnswer:"
        (output,) = session.generate([GenerationRequest(asked, max_new_tokens=12)])
        right, wrong = session.loglikelihood(
            [LoglikelihoodRequest(asked, answer) for answer in (output.text, " a lemon")]
        )
    assert right.is_greedy and right.logprob > wrong.logprob
"""


def test_python_program_uses_vllm_without_the_runner(place: Place, table: dict[str, str]) -> None:
    page = (PACKAGES / "evalution-vllm" / "README.md").read_text(encoding="utf-8")
    by_cpu = re.findall(r"^\$ uv pip install (.*)$", page, re.MULTILINE)
    assert len(by_cpu) == 2
    for line in by_cpu:
        words = [word.strip('"') for word in line.split()]
        words = [word for word in words if word not in ("evalution-runner", "evalution-reference")]
        if FOLDERS and "--torch-backend" in words:
            words = [*CPU_TORCH, "torch==2.13.0+cpu", *words[2:]]
        place.install(*words)
    if FOLDERS:  # torch came from a folder, and these are built for the index's own, as README says
        others = ["torchvision", "torchaudio", "torchcodec"]
        place.run("uv", "pip", "uninstall", "--quiet", "--python", "venv", *others)
    table["evalution-vllm, its lines for a CPU"] = place.size()
    (place.folder / "program.py").write_text(PROGRAM.format(path=str(TINY)), encoding="utf-8")
    place.run("python", "program.py")


def test_vendor_gets_from_the_generator_to_a_green_report(
    place: Place, table: dict[str, str]
) -> None:
    place.install("evalution-enginekit", "pip")
    place.run("python", "-m", "evalution_enginekit.new", "acme")
    home = place.folder / "evalution-acme"
    index = ["--extra-index-url", f"{place.index}/simple/"]
    wanted = ["-e", str(home), "evalution-conformance", "pytest"]
    place.run("pip", "install", "--quiet", *index, *wanted)
    report = place.folder / "report.json"
    place.run("pytest", "-q", f"--rootdir={home}", str(home), f"--conformance-report={report}")
    assert read_outcomes(report) <= {"passed", "refused", "skipped"}
    table["a vendor's new engine, with the kit"] = place.size()


def test_vendors_package_conforms_on_its_real_runtime(
    place: Place, index: str, table: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    converter = Place(tmp_path_factory.mktemp("converter"), index)
    converter.run("uv", "venv", "--quiet", "--python", sys.executable, "venv")
    torch = [*CPU_TORCH, "torch==2.13.0+cpu"] if FOLDERS else ["--torch-backend", "cpu", "torch"]
    converter.install(*torch, "ctranslate2>=4.8,<4.9", "transformers<6")
    page = (VENDOR / "README.md").read_text(encoding="utf-8")
    convert, check = (
        re.findall(rf"^\$ ({command} .*)$", page, re.MULTILINE)[0].split()
        for command in ("ct2-transformers-converter", "evalution conform")
    )
    converter.run(*[str(TINY) if word == '"$TINY"' else word for word in convert])
    # Away from this repository: nothing but the index is at hand.
    source = shutil.copytree(VENDOR, place.folder / "source")
    place.run("uv", "build", "--quiet", "--no-config", "--out-dir", "dist", str(source))
    local_index.upload(index, *sorted((place.folder / "dist").glob("evalution_ctranslate2*.whl")))
    others = ["evalution-runner", "evalution-conformance", "evalution-reference"]
    place.install("evalution-ctranslate2", *others)
    table["evalution-ctranslate2, with the kit"] = place.size()
    shutil.copytree(converter.folder / "tiny-ct2", place.folder / "tiny-ct2")
    place.run(*check)
    outcomes = read_outcomes(place.folder / "conformance" / "conformance.json")
    assert outcomes == {"passed", "refused", "skipped"}
    tests = [str(source / "tests"), f"--rootdir={source}", "-q", "-k", "folder"]
    place.run("pytest", *tests)


def read_outcomes(report: Path) -> set[str]:
    (checked,) = json.loads(report.read_text(encoding="utf-8"))["engines"]
    assert checked["is_built"]
    return {check["outcome"] for check in checked["checks"]}
