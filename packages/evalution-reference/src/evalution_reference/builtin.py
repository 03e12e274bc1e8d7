"""What this package offers under `builtin:tiny`."""

from __future__ import annotations

from pathlib import Path

_DATA = Path(__file__).parent / "data" / "tiny"

TINY: dict[str, Path] = {
    "safetensors": _DATA,
    "gguf": _DATA / "tiny-f32.gguf",
    "gguf-q8_0": _DATA / "tiny-q8_0.gguf",
    "reference_values": _DATA / "reference_values.json",
    "quickstart": _DATA.parent / "quickstart.yaml",
    **{f"rows/{file.stem}": file for file in sorted((_DATA / "rows").glob("*.jsonl"))},
}
