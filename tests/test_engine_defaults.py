"""Engines do by default what their docstrings and the table in `docs/contract.md` say."""

from __future__ import annotations

import ast
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from evalution_core import BaseInferenceSession, LoglikelihoodRequest, Model, load_engine
from evalution_core.builtins import builtin_path
from evalution_core.discovery import available

# vLLM 0.32 leaves a ZeroMQ context unclosed, which is collected in whatever test comes then.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function Context:pytest.PytestUnraisableExceptionWarning"
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "contract.md"
LABELS = ("Tokenizer", "Precision", "Ends", "Recorded")
HEAD = "| engine | tokenizer | checkpoint: arithmetic by default | ends of generation | recorded |"
SECTION = re.compile(r"^## What each engine takes by default\n.*?(^\|.*?)\n\n", re.M | re.S)


def read_facts(docstring: str) -> dict[str, str]:
    """Return the labelled lines at the end of an engine's docstring, without the full stop."""
    text = " ".join(docstring.split())
    labels = "|".join(LABELS)
    return dict(re.findall(rf"\b({labels}): (.+?)\.(?= (?:{labels}): |$)", text))


def read_docstrings() -> dict[str, str]:
    """Return the docstring of every engine of the workspace by its name; imports none."""
    found: dict[str, str] = {}
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        for name, place in project.get("entry-points", {}).get("evalution.engines", {}).items():
            module, _, kind = place.partition(":")
            source = file.parent / "src" / f"{module.replace('.', '/')}.py"
            tree = ast.parse(source.read_text("utf-8"))
            classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
            found[name] = ast.get_docstring(classes[kind]) or ""
    return dict(sorted(found.items()))


def make_table() -> str:
    rows = [HEAD, "|---|---|---|---|---|"]
    for name, docstring in read_docstrings().items():
        facts = read_facts(docstring)
        assert list(facts) == list(LABELS), f"{name} lacks one of {LABELS} in its docstring"
        rows.append(f"| {' | '.join([f'`{name}`', *facts.values()])} |")
    return "\n".join(rows)


def test_contract_shows_what_the_engines_say() -> None:
    shown = SECTION.search(PAGE.read_text("utf-8"))
    assert shown is not None, "the section is missing"
    print(make_table())
    assert shown[1] == make_table(), "docs/contract.md differs from the table printed above"


Floats = np.ndarray[Any, np.dtype[np.float32]]

TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Nats a token, by the arithmetic."""
SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
FASTER = {"VLLM": {"enforce_eager": True, "multiprocessing": False}}
"""Options that spare a test compiling and processes; none gives a precision."""
READS_GGUF = ("LlamaCpp", "Tinygrad")
TEXTS, LENGTH = 4, 200

# Other tests register engines of their own in this process, which no distribution brings.
INSTALLED = {entry.name for entry in available() if entry.distribution is not None}
DECLARED = {
    name: dict(re.findall(r"(\w+): ([\w ]+)", read_facts(docstring)["Precision"]))
    for name, docstring in read_docstrings().items()
    # Its weights are quantised, and its own tests run it.
    if name in INSTALLED - {"GPTQModel"}
}
ENGINES = sorted(name for name, precisions in DECLARED.items() if precisions)


def round_to(dtype: str, values: Floats) -> Floats:
    """Return the values as float32 after a rounding to the type, to even where they are between."""
    if dtype != "bfloat16":
        return values.astype(dtype).astype(np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.view(np.float32)


def encode(dtype: str, values: Floats) -> bytes:
    if dtype != "bfloat16":
        return values.astype(dtype).tobytes()
    return (round_to(dtype, values).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_folder(folder: Path, dtype: str) -> None:
    """Write the tiny model with its weights in another type, and a further end of generation."""
    tiny = builtin_path("builtin:tiny", "safetensors")
    for file in (*tiny.glob("*.json"), *tiny.glob("*.jinja")):
        shutil.copy(file, folder)
    for name, key, value in (
        ("config.json", "torch_dtype", dtype),
        ("generation_config.json", "eos_token_id", [563, 564]),
    ):
        content = json.loads((folder / name).read_text("utf-8"))
        (folder / name).write_text(json.dumps(content | {key: value}), "utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    with safe_open(tiny / "model.safetensors", "np") as opened:
        for name in opened.keys():  # noqa: SIM118 - it isn't iterable itself
            values = opened.get_tensor(name)
            begin, data = len(data), data + encode(dtype, values)
            place = {"shape": list(values.shape), "data_offsets": [begin, len(data)]}
            header[name] = {"dtype": SAFETENSORS[dtype], **place}
    head = json.dumps(header).encode()
    size = len(head).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(size + head + data)


def write_gguf(file: Path, dtype: str) -> None:
    """Write the tiny model's file with its matrices in another type, its norms rounded to it."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    kind = gguf.GGMLQuantizationType[SAFETENSORS[dtype]]
    reader = gguf.GGUFReader(builtin_path("builtin:tiny", "gguf"))
    writer = gguf.GGUFWriter(file, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        values = round_to(dtype, np.array(tensor.data))
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def write_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes the tiny model in a type for an engine, once."""
    made: dict[tuple[str, bool], Path] = {}

    def write(dtype: str, engine: str) -> Path:
        key = dtype, engine in READS_GGUF
        if key not in made:
            path = tmp_path_factory.mktemp(dtype)
            if key[1]:
                path /= f"tiny-{dtype}.gguf"
            (write_gguf if key[1] else write_folder)(path, dtype)
            made[key] = path
        return made[key]

    return write


def score_texts(session: BaseInferenceSession) -> list[float]:
    tokenizer = session.tokenizer
    assert tokenizer is not None
    rows = builtin_path("builtin:tiny", "rows/prose").read_text("utf-8").splitlines()[:TEXTS]
    requests: list[LoglikelihoodRequest] = []
    for row in rows:
        ids = [*tokenizer.leading_ids, *tokenizer.encode(json.loads(row)["text"])][:LENGTH]
        requests.append(
            LoglikelihoodRequest(context_input_ids=ids[:1], continuation_input_ids=ids[1:])
        )
    outputs = session.loglikelihood(requests)
    return [value for output in outputs for value in output.token_logprobs or ()]


# Runtimes call what libraries beneath them deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", ENGINES)
def test_default_precision_is_the_declared_one_and_recorded(
    name: str, dtype: str, write_checkpoint: Callable[[str, str], Path]
) -> None:
    right = Model(str(write_checkpoint(dtype, "Reference")))
    with load_engine("Reference")(dtype="float64").build(right) as session:
        expected = score_texts(session)
    model = Model(str(write_checkpoint(dtype, name)))
    with load_engine(name)(**FASTER.get(name, {})).build(model) as session:
        found = score_texts(session)
        execution = session.describe_execution()
    assert execution is not None
    computed = execution["dtype"]
    assert computed in DECLARED[name][dtype].split(" or ")
    worst = max(abs(one - other) for one, other in zip(found, expected, strict=True))
    assert worst < TOLERANCES[computed]
    # A GGUF file declares one end alone.
    assert execution["eos_ids"] == ([563] if name in READS_GGUF else [563, 564])
    recorded = set(re.findall(r"`(\w+)`", read_facts(read_docstrings()[name])["Recorded"]))
    assert recorded <= execution.keys()
