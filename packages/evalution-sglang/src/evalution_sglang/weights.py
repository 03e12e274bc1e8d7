"""Whether the weights of a checkpoint are all there.

SGLang 0.5 leaves a weight that no file has as memory happens to be, and doesn't say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError

_INDEX = "model.safetensors.index.json"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_SHOWN = 3


def check_weights(folder: Path) -> None:
    """Refuse a folder of safetensors files that lacks one of them, or all weights of a layer.

    Only what the folder itself says is counted: the files that its index names, and the layers of
    `config.json`. Weights in other formats are left to SGLang.

    Raises:
        ConfigurationError: as told, or a file can't be read.
    """
    layers = _declared_layers(folder)
    found = {int(match[1]) for name in _names(folder) if (match := _LAYER.search(name))}
    if not found or not (missing := sorted(set(range(layers)) - found)):
        return
    raise ConfigurationError(
        f"the checkpoint {str(folder)!r} lacks the weights of {len(missing)} of its {layers} "
        f"layers ({_few(map(str, missing))}); its answers would be those of random ones"
    )


def _names(folder: Path) -> Iterable[str]:
    if not (folder / _INDEX).is_file():
        return [name for file in sorted(folder.glob("*.safetensors")) for name in _stored(file)]
    files: Any = _json(folder / _INDEX).get("weight_map")
    if not isinstance(files, dict):
        raise ConfigurationError(f"{_INDEX} in {str(folder)!r} has no weight_map; copy it again")
    by_name = cast("dict[str, str]", files)
    absent = sorted({file for file in by_name.values() if not (folder / file).is_file()})
    if absent:
        raise ConfigurationError(
            f"the checkpoint {str(folder)!r} lacks {len(absent)} of the files that its index names "
            f"({_few(absent)}); copy or download it again"
        )
    return by_name


def _stored(file: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - comes with SGLang

    try:
        reader: Any = safe_open(file, framework="np")
        with reader as opened:
            return list(opened.keys())
    except SafetensorError as error:
        raise ConfigurationError(f"{file} can't be read: {error}; copy it again") from error


def _declared_layers(folder: Path) -> int:
    config = _json(folder / "config.json") if (folder / "config.json").is_file() else {}
    text: Any = config.get("text_config")
    for part in (config, cast("dict[str, Any]", text) if isinstance(text, dict) else {}):
        if isinstance(count := part.get("num_hidden_layers"), int):
            return count
    return 0


def _json(file: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(file.read_bytes())
    except ValueError as error:
        raise ConfigurationError(f"{file} can't be read: {error}; copy it again") from error
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")
