"""Whether a checkpoint holds what isn't quantised of the model that was loaded from it."""

# torch and the libraries around it leave part of their functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from evalution_core import ConfigurationError
from evalution_gptqmodel.kernels import quantized_layers

if TYPE_CHECKING:
    import torch


def check_complete(model: torch.nn.Module, folder: Path) -> None:
    """Refuse a checkpoint that lacks an embedding, a norm, or an output layer.

    GPTQModel's loader asks for the weights of the quantised layers alone; any other layer without
    weights keeps whatever was in its memory. Weights that the loader may have renamed or joined
    can't be judged: where the checkpoint has names that the model doesn't, nothing is refused.

    Raises:
        ConfigurationError: weights are missing.
    """
    stored = set(_names(folder.glob("*.safetensors")))
    quantized = tuple(f"{name}." for name, _ in quantized_layers(model))
    held: dict[int, set[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if not name.startswith(quantized):
            held.setdefault(id(weight), set()).add(name)
    missing = [min(names) for names in held.values() if not names & stored]
    own = {*model.state_dict(), *(name for names in held.values() for name in names)}
    renamed = [name for name in stored - own if not name.startswith(quantized)]
    if missing and not renamed:
        shown = ", ".join(sorted(missing)[:3]) + (", …" if len(missing) > 3 else "")
        raise ConfigurationError(
            f"the checkpoint {str(folder)!r} lacks {len(missing)} weights of its model ({shown}); "
            f"its answers would be those of random ones"
        )


def _names(files: Iterable[Path]) -> Iterable[str]:
    for file in files:
        with safe_open(file, "pt") as opened:
            yield from opened.keys()
