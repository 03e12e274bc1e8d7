"""The tiny model, quantised by GPTQModel once for all tests, and its weights as floats again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from evalution_core.builtins import builtin_path
from evalution_gptqmodel.runtime import divert_output, import_gptqmodel

BITS = 4
GROUP_SIZE = 32
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.fixture(scope="session", autouse=True)
def runtime() -> Any:
    """The package `gptqmodel`, which its maker offers for Linux alone."""
    if find_spec("gptqmodel") is None:
        pytest.skip("gptqmodel is not installed")
    return import_gptqmodel()


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The folder of the tiny model, in float32."""
    return builtin_path("builtin:tiny", "safetensors")


@pytest.fixture(scope="session")
def wrapper(runtime: Any, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The tiny model, quantised in memory by GPTQModel."""
    rows = (tiny / "rows" / "prose.jsonl").read_text("utf-8").splitlines()
    settings = runtime.QuantizeConfig(
        bits=BITS,
        group_size=GROUP_SIZE,
        desc_act=False,
        sym=True,
        device="cpu",
        pack_impl="original",  # the default compiles C++ first
        offload_to_disk=False,
    )
    with pytest.MonkeyPatch.context() as patch, divert_output():
        # On two cores gptqmodel 7.6 and 7.7 give themselves one worker, and ask it for two.
        patch.setenv("GPTQMODEL_CPU_WORKERS", "2")
        # It writes its logs to the working directory.
        with chdir(tmp_path_factory.mktemp("gptqmodel")):
            made = runtime.GPTQModel.load(str(tiny), settings)
            made.quantize([json.loads(row)["text"] for row in rows], batch_size=4)
        yield made


@pytest.fixture(scope="session")
def quantized(wrapper: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quantised checkpoint."""
    folder = tmp_path_factory.mktemp("tiny") / "quantized"
    with divert_output():
        wrapper.save(str(folder))
    return folder


@pytest.fixture(scope="session")
def dequantized(quantized: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quantised weights as floats: what its scores are held against, in float64."""
    folder = tmp_path_factory.mktemp("tiny") / "dequantized"
    folder.mkdir()
    stored = load_file(quantized / "model.safetensors")
    layers = sorted(name.removesuffix(".qweight") for name in stored if name.endswith(".qweight"))
    parts = {
        f"{layer}.{part}" for layer in layers for part in ("qweight", "qzeros", "scales", "g_idx")
    }
    weights = {name: weight.float() for name, weight in stored.items() if name not in parts}
    for layer in layers:
        weights[f"{layer}.weight"] = _weight(stored, layer)
    save_file(weights, folder / "model.safetensors")
    config = json.loads((quantized / "config.json").read_text("utf-8"))
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}), "utf-8")
    for name in _TOKENIZER:
        shutil.copy(tiny / name, folder)
    return folder


@pytest.fixture(scope="session")
def untemplated(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's tokenizer without a chat template."""
    folder = tmp_path_factory.mktemp("tiny") / "untemplated"
    folder.mkdir()
    for name in _TOKENIZER:
        shutil.copy(tiny / name, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def _weight(stored: dict[str, torch.Tensor], layer: str) -> torch.Tensor:
    """The [out, in] weight of a layer, exactly: (quantised - zero) x scale of its group.

    Eight values of four bits are in an int32, the lowest first: along the rows of `qweight`
    [in / 8, out], along the columns of `qzeros` [groups, out / 8]. Format `gptq` stores zeros
    minus 1.
    """
    shifts = torch.arange(0, 32, BITS)
    mask = (1 << BITS) - 1
    packed, zeros = stored[f"{layer}.qweight"], stored[f"{layer}.qzeros"]
    values = ((packed[:, None, :] >> shifts[None, :, None]) & mask).flatten(0, 1)
    zeros = ((zeros[:, :, None] >> shifts[None, None, :]) & mask).flatten(1) + 1
    groups = stored[f"{layer}.g_idx"].long()
    scales = stored[f"{layer}.scales"].float()
    return ((values - zeros[groups]) * scales[groups]).T.contiguous()
