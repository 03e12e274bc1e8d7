"""A file of prompts: which of GuideLLM's kinds it is, and how many rows it has."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from evalution_core import ConfigurationError

_LOADERS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".text": "text",
    ".txt": "text",
}
"""The loaders of `datasets` by the ending of the file; GuideLLM's kinds are named after them."""

_NO_ROWS = "corresponds to no data"
"""In what `datasets` says of a file that has a head and no rows."""


def data_kind(file: Path) -> str:
    """GuideLLM's kind of data.

    Raises:
        ConfigurationError: there is no such file, or its ending says nothing.
    """
    loader = _LOADERS.get(file.suffix.lower())
    if loader is None:
        raise ConfigurationError(
            f"--data {file}: a file must end in one of {', '.join(sorted(_LOADERS))}"
        )
    if not file.is_file():
        raise ConfigurationError(f"--data {file}: there is no such file")
    return f"{loader}_file"


def row_count(file: Path) -> int:
    """How many prompts the file has, as GuideLLM will read it.

    Raises:
        ConfigurationError: it can't be read, is empty, or has no column that GuideLLM knows.
    """
    loader = data_kind(file).removesuffix("_file")
    if not file.stat().st_size:
        raise ConfigurationError(f"--data {file} is empty")
    datasets: Any = import_module("datasets")
    datasets.disable_progress_bars()  # they would stand in the way of GuideLLM's own
    try:
        found = datasets.load_dataset(loader, data_files=str(file), split="train")
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        cause = error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0]
        told = "has no rows" if _NO_ROWS in reason else f"can't be read as {loader}: {reason}"
        raise ConfigurationError(f"--data {file} {told}") from error
    rows: int = found.num_rows
    if not rows:
        raise ConfigurationError(f"--data {file} has no rows")
    _check_columns(file, found)
    return rows


def _check_columns(file: Path, rows: Any) -> None:
    """Raise where GuideLLM would find nothing in any row; itself, it tells once the model loads."""
    mapper: Any = import_module("guidellm.data.preprocessors.mappers").GenerativeColumnMapper
    if not mapper.datasets_mappings([rows]):
        raise ConfigurationError(
            f"--data {file} has no column of prompts (it has: {', '.join(rows.column_names)}); "
            f"call it one of {', '.join(mapper.defaults['text_column'])}"
        )
