"""The stages and the steps of each; every step reuses a bench, the conformance kit or a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools.gpu.card import find_cuda_libraries
from tools.gpu.steps import ROOT, Record, Step, merge_attempts

BENCH, HERE = ROOT / "tools" / "bench", Path(__file__).parent
MODELS = ("1b", "7b")
TRANSFORMERS_CLASSES = {
    "TestCudaFloat32": "sdpa, float32",
    "TestCudaBFloat16": "sdpa, bfloat16",
    "TestCudaFloat16": "sdpa, float16",
    "TestCudaEager": "eager, float32",
    "TestCudaCompatFloat32": "TransformersCompat, float32",
    "TestCudaCompatBFloat16": "TransformersCompat, bfloat16",
    "TestCudaCompatFloat16": "TransformersCompat, float16",
    "TestCudaPagedFloat32": "paged, float32",
    "TestCudaPagedBFloat16": "paged, bfloat16",
    "TestCudaPagedGraphs": "paged with CUDA graphs, bfloat16",
    "TestCudaPagedAsync": "paged with asynchronous batches, bfloat16",
    "TestCudaFlash": "flash attention, bfloat16",
    "TestCudaPagedFlash": "paged flash attention, bfloat16",
}
"""Classes of test_gpu_conformance.py, each a step."""
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
REHEARSED_CHECKS = "test_scores_equal_the_reference or test_completions_equal_the_reference"
REHEARSED_CLASSES = ("TestCudaPagedGraphs",)


@dataclass(frozen=True)
class Places:
    """Folders of a run, the choice to rehearse on a CPU, and the models that a card is given."""

    work: Path
    rehearse: bool
    models: tuple[str, ...] = MODELS

    @property
    def site(self) -> Path:
        return self.work / "bundle" / "site"

    @property
    def records(self) -> Path:
        return self.work / "records"

    @property
    def device(self) -> str:
        return "cpu" if self.rehearse else "cuda"

    @property
    def sizes(self) -> tuple[str, ...]:
        return ("tiny",) if self.rehearse else self.models

    @property
    def dtypes(self) -> tuple[str, ...]:
        return ("bfloat16",) if self.rehearse else ("float32", "bfloat16", "float16")

    def checkpoint(self, size: str, tokenizer: str = "text") -> Path:
        return self.work / "models" / size / tokenizer


def module(name: str, *arguments: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", f"tools.gpu.{name}", *arguments]


def bench(name: str, *arguments: str | Path) -> list[str | Path]:
    return [sys.executable, BENCH / f"{name}.py", *arguments, "--json", "{result}"]


def prepare(places: Places) -> Iterator[Step]:
    """The card, its ceilings and what is installed; the models."""
    here = places.work / "steps" / "prepare" / "machine"  # another machine is described again
    yield Step("machine", module("card", "{result}"), 120, makes=here)
    for size in places.sizes:
        folder = places.work / "models" / size
        yield Step(f"model {size}", module("models", size, folder), 240, makes=folder)


def check_conformance(
    places: Places, member: str, file: str, name: str, shown: str, seconds: int = 240
) -> Step:
    """The conformance kit on one class that is marked `gpu`."""
    path = f"packages/{member}/tests/{file}"
    command = [
        *(sys.executable, "-m", "pytest", "-n0", "-q", "-m", "gpu", "--timeout=60"),
        # Whatever else the machine has for pytest stays away.
        *("--disable-plugin-autoload", "-p", "xdist", "-p", "timeout"),
        *("-p", "evalution_conformance", "--conformance-report={result}"),
        f"{path}::{name}",
        *(("-k", REHEARSED_CHECKS) if places.rehearse else ()),
    ]
    device = {"EVALUTION_GPU_DEVICE": places.device}
    return Step(shown, command, seconds, variables=device)


def make_unavailable(name: str, reason: str) -> Step:
    """Return a step that this machine lacks something for."""
    code = f"from tools.gpu.steps import stop_unavailable as stop; stop({reason!r})"
    return Step(name, [sys.executable, "-c", code])


def conform(places: Places) -> Iterator[Step]:
    """(a) Both engines of Transformers pass the conformance kit in each dtype and attention."""
    for name, shown in TRANSFORMERS_CLASSES.items():
        if "Flash" in name and find_spec("flash_attn") is None:
            yield make_unavailable(shown, "flash-attn is not installed")
        elif not places.rehearse or name in REHEARSED_CLASSES:
            yield check_conformance(
                places, "evalution-transformers", "test_gpu_conformance.py", name, shown
            )


def write_spec(places: Places, name: str, content: dict[str, Any]) -> Path:
    """Write a spec of the runner; JSON is YAML."""
    file = places.work / "specs" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), "utf-8")
    return file


def tests(rows: int) -> list[dict[str, Any]]:
    """Questions, prose and prompts that evalution-reference carries."""
    question = "Question: {question}\nAnswer:"
    choices = {"prompt": question, "choices": "choices", "target": "answer"}
    return [
        {"type": "multiple_choice", "data": "builtin:tiny/choices", "max_rows": rows, **choices},
        {"type": "perplexity", "data": "builtin:tiny/prose", "text": "text", "max_rows": rows},
        {
            "type": "generation",
            "data": "builtin:tiny/sums",
            "prompt": question,
            "target": "answer",
            "max_new_tokens": 8,
            "max_rows": rows,
        },
    ]


def compare_with_oracle(places: Places, engine: dict[str, Any], label: str) -> Step:
    """`evalution parity` of an engine with Reference in float64 on the tiny model."""
    tolerance = TOLERANCES[engine.get("dtype", "float16")]
    content = {
        "engine": engine,
        "model": "builtin:tiny",
        "against": {"engine": {"type": "Reference", "dtype": "float64"}},
        "tests": tests(2 if places.rehearse else 100),
    }
    spec = write_spec(places, f"oracle-{label}".replace(" ", "-"), content)
    # Rounding may decide where two answers are as likely as each other to its width.
    decisions = ("--decisions", "0" if tolerance <= TOLERANCES["float32"] else "100")
    command = [sys.executable, "-m", "evalution", "parity", spec, "--output", "{result}"]
    options = ("--tolerance", f"{tolerance:g}", *decisions, "--quiet")
    return Step(f"oracle {label}", [*command, *options], 240, "parity.json")


def compare(places: Places) -> Iterator[Step]:
    """(b) Parity: with the float64 oracle on the tiny model, with lm-eval's `hf` on large ones."""
    rows = ["4"] if places.rehearse else []
    for size in reversed(places.sizes):  # the longest first
        for dtype in places.dtypes if size != "7b" else ("bfloat16",):
            command = module("hf_parity", places.checkpoint(size), dtype, "{result}")
            yield Step(f"hf {size} {dtype}", [*command, *rows], 200)
    for dtype in places.dtypes:
        engine = {"type": "Transformers", "dtype": dtype, "device": places.device}
        yield compare_with_oracle(places, engine, dtype)


def measure_speed(places: Places) -> Iterator[Step]:
    """(c) Scoring against lm-eval at its best batch, generation against upstream's own."""
    if places.rehearse:
        scoring, paged = HERE / "scoring_tiny.toml", HERE / "paged_tiny.toml"
        shapes, generation = ["mmlu"], ["even"]
    else:
        scoring, paged = BENCH / "scoring_cuda.toml", BENCH / "paged_generation.toml"
        shapes, generation = ["mmlu", "arc", "hellaswag", "wikitext"], ["even", "skewed"]
    attempts = merge_attempts(Record(places.records).read())

    def score(name: str, size: str, asked: Sequence[str], *further: str) -> Step:
        rows = attempts.get(("speed", name), {}).get("result") or ()
        measured = {row["shape"] for row in rows}
        left = [shape for shape in asked if shape not in measured]
        words = ("--config", scoring, "--checkpoint", places.checkpoint(size, "words"))
        return Step(name, bench("scoring", *words, *further, *(left or asked)), 400)

    for size in places.sizes:
        yield score(f"scoring {size}", size, shapes)
    options = ("--device", places.device, "--config", paged, "--pairs", "1")
    for shape in generation:
        name = f"generation {places.sizes[0]} {shape}"
        yield Step(name, bench("paged_generation", *options, shape), 400)
    yield score("profile", places.sizes[-1], ["mmlu"], "--pairs", "1", "--profile")
    if not places.rehearse:
        yield score("scoring 1b gsm8k", "1b", ["gsm8k"], "--pairs", "1")


def run_tinygrad(places: Places) -> Iterator[Step]:
    """(d) tinygrad on CUDA: parity with the oracle, its bench, conformance."""
    engine = {"type": "Tinygrad", "device": places.device, "dtype": "float32"}
    steps = [compare_with_oracle(places, engine, "tinygrad")]
    if not places.rehearse:
        pairs = ("--device", places.device, "--pairs", "3")
        test = ("evalution-tinygrad", "test_tinygrad_gpu.py", "TestTinygradCuda", "conformance")
        steps += [
            Step("batching", bench("tinygrad_batching", *pairs), 240),
            check_conformance(places, *test, 500),
        ]
    yield from add_variables(steps, find_cuda_libraries())


def run_llama(places: Places) -> Iterator[Step]:
    """(e) llama.cpp with CUDA: compiled there, conformance, parity, its bench."""
    sources, build = places.work / "bundle" / "llama", places.work / "llama-build"
    library = build / "bin" / "libllama.so"
    built = None if places.rehearse else library
    yield Step("build", module("llama_build", sources, build), 520, makes=built)
    check = check_conformance(
        places, "evalution-llama-cpp", "test_llama_cpp_gpu.py", "TestLlamaCppCuda", "conformance"
    )
    engine = {"type": "LlamaCpp", "device": places.device}
    oracle = compare_with_oracle(places, engine, "llama.cpp")
    options = ("--config", HERE / f"llama_{'tiny' if places.rehearse else 'cuda'}.toml")
    options = (*options, "--device", places.device, "--pairs", "1" if places.rehearse else "3")
    shapes = ("mmlu",) if places.rehearse else ("mmlu", "hellaswag_10shot", "generation")
    steps = [
        oracle,
        check,
        *(Step(f"bench {name}", bench("llama_cpp_python", *options, name)) for name in shapes),
    ]
    folder = find_library(library.parent, places)
    if folder is None:
        yield from (make_unavailable(step.name, "no compiled llama.cpp here") for step in steps)
    else:
        yield from add_variables(
            steps, {"LLAMA_CPP_LIB_PATH": str(folder), **find_cuda_libraries()}
        )


def add_variables(found: Iterable[Step], variables: Mapping[str, str]) -> Iterator[Step]:
    for step in found:
        yield replace(step, variables={**(step.variables or {}), **variables})


def find_library(built: Path, places: Places) -> Path | None:
    """Return the folder of the compiled library; a rehearsal uses that of its environment."""
    if not places.rehearse:
        return built
    paths = [Path(path) / "llama_cpp" / "lib" for path in sys.path if "site-packages" in path]
    return next((path for path in paths if path.is_dir()), None)


def measure_memory(places: Places) -> Iterator[Step]:
    """(f) Memory: the peak beside weights and cache, and recovery where it runs out."""
    for size in places.sizes:
        command = module("memory", places.checkpoint(size, "words"), size, "{result}")
        yield Step(f"memory {size}", command, 240)


def measure_noise(places: Places) -> Iterator[Step]:
    """(g) How far the same request moves with its neighbours, its order and its caches."""
    rows = 1 if places.rehearse else 20
    for size in places.sizes[:1]:
        for dtype in places.dtypes if places.rehearse else ("bfloat16", "float32"):
            content = {
                "engine": {"type": "Transformers", "dtype": dtype, "device": places.device},
                "model": str(places.checkpoint(size)),
                "tests": tests(rows),
            }
            spec = write_spec(places, f"noise-{size}-{dtype}", content)
            command = [sys.executable, "-m", "evalution", "noise", spec, "--limit", str(rows)]
            options = ("--output", "{result}", "--quiet")
            yield Step(f"noise {size} {dtype}", [*command, *options], 260, "noise.json")


def serve_with(
    member: str, file: str, name: str, engine: dict[str, Any]
) -> Callable[[Places], Iterator[Step]]:
    """Return the steps of an engine that needs an image of its own: conformance, parity, noise."""

    def steps(places: Places) -> Iterator[Step]:
        yield check_conformance(places, member, file, name, "conformance", 500)
        yield compare_with_oracle(places, {**engine, "dtype": "bfloat16"}, engine["type"])
        content = {
            "engine": {**engine, "dtype": "bfloat16"},
            "model": "builtin:tiny",
            "tests": tests(20),
        }
        spec = write_spec(places, f"noise-{engine['type']}", content)
        command = [sys.executable, "-m", "evalution", "noise", spec, "--output", "{result}"]
        yield Step("noise", [*command, "--quiet"], 400, "noise.json")
        if engine["type"] == "VLLM":
            yield Step("cost", [sys.executable, BENCH / "vllm_cost.py"], 500)

    return steps


STAGES: dict[str, Callable[[Places], Iterator[Step]]] = {
    "prepare": prepare,
    "conformance": conform,
    "parity": compare,
    "speed": measure_speed,
    "memory": measure_memory,
    "noise": measure_noise,
    "tinygrad": run_tinygrad,
    "llama-cpp": run_llama,
    "vllm": serve_with(
        "evalution-vllm",
        "test_vllm_conformance.py",
        "TestVLLMCuda",
        {"type": "VLLM", "gpu_memory_utilization": 0.3, "max_num_seqs": 16},
    ),
    "sglang": serve_with(
        "evalution-sglang",
        "test_sglang_conformance.py",
        "TestSGLangCuda",
        {"type": "SGLang", "mem_fraction_static": 0.3, "max_running_requests": 16},
    ),
    "tensorrt-llm": serve_with(
        "evalution-tensorrt-llm",
        "test_tensorrt_llm_gpu.py",
        "TestTensorRTLLMCuda",
        {"type": "TensorRTLLM", "free_gpu_memory_fraction": 0.3, "max_batch_size": 16},
    ),
}
CONTAINERS = ("vllm", "sglang", "tensorrt-llm")
"""Stages for a machine that has their runtime: the others need the bundle alone."""
COMMON = [name for name in STAGES if name not in CONTAINERS]
"""Stages of `all`, the most valuable first."""
WORKERS = {"conformance": 12, "parity": 4}
"""Steps at once, where nothing is timed."""
SHARES = {"conformance": 150.0, "parity": 120.0, "speed": 300.0}
"""Seconds that a stage may take of a call before others get theirs."""


def list_steps(stage: str, places: Places) -> Sequence[Step]:
    return list(STAGES[stage](places))
