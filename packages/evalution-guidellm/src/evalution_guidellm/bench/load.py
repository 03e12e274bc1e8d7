"""The load of a benchmark: the schedule of requests, and the prompts that they carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
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
"""In the message of `datasets` for a file that has a head and no rows."""


def find_loader(file: Path) -> str:
    """Return the loader of `datasets` for a file.

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
    return loader


def count_rows(file: Path) -> int:
    """Count the prompts of the file, as GuideLLM will read it.

    Raises:
        ConfigurationError: it can't be read, is empty, or has no column that GuideLLM knows.
    """
    loader = find_loader(file)
    if not file.stat().st_size:
        raise ConfigurationError(f"--data {file} is empty")
    datasets: Any = import_module("datasets")
    datasets.disable_progress_bars()  # they would stand in the way of GuideLLM's own
    try:
        rows = datasets.load_dataset(loader, data_files=str(file), split="train")
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        problem = "has no rows" if _NO_ROWS in reason else f"can't be read as {loader}: {reason}"
        raise ConfigurationError(f"--data {file} {problem}") from error
    mapper: Any = import_module("guidellm.data.preprocessors.mappers").GenerativeColumnMapper
    if not mapper.datasets_mappings([rows]):
        raise ConfigurationError(
            f"--data {file} has no column of prompts (it has: {', '.join(rows.column_names)}); "
            f"call it one of {', '.join(mapper.defaults['text_column'])}"
        )
    return rows.num_rows


class Profile(StrEnum):
    """The schedule by which requests are sent."""

    SYNCHRONOUS = "synchronous"
    CONCURRENT = "concurrent"
    THROUGHPUT = "throughput"
    RATE = "rate"


_REQUESTS, _CONCURRENCY, _PROMPT_TOKENS = 100, 8, 256


@dataclass(frozen=True, slots=True)
class Load:
    """One or several levels of load, measured one after the other.

    Args:
        profile: one request after the other, so many at once, all at once, or so many a second.
        concurrency: how many at once, a level each; of `throughput` one, the most.
        rate: requests a second, a level each.
        requests, seconds: a level ends at the first of them; with neither, after 100 requests, or
            after the last row of `data`.
        prompt_tokens: the length of made-up prompts, 256 where None.
        output_tokens: how many are generated of each request; with `data`, how many at most.
        data: a file of prompts in place of made-up ones.
        seed: of the made-up prompts.

    Raises:
        ConfigurationError: options that don't go together, or a file that isn't there.
    """

    profile: Profile = Profile.CONCURRENT
    concurrency: Sequence[int] = ()
    rate: Sequence[float] = ()
    requests: int | None = None
    seconds: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int = 128
    data: Path | None = None
    seed: int = 42

    def __post_init__(self) -> None:
        profile = self.profile
        if self.rate and profile != Profile.RATE:
            raise ConfigurationError(f"--rate is for --profile rate; this is --profile {profile}")
        if profile == Profile.RATE and not self.rate:
            raise ConfigurationError("--profile rate needs --rate, as --rate 2,5 requests a second")
        if self.concurrency and profile in (Profile.SYNCHRONOUS, Profile.RATE):
            raise ConfigurationError(
                f"--concurrency is for the profiles concurrent and throughput; this is {profile}"
            )
        if profile == Profile.THROUGHPUT and len(self.concurrency) > 1:
            raise ConfigurationError("--profile throughput takes one --concurrency, the most")
        if self.data is not None:
            if self.prompt_tokens is not None:
                raise ConfigurationError(
                    "--prompt-tokens is for made-up prompts; --data has its own"
                )
            find_loader(self.data)

    def limit_to(self, rows: int) -> Load:
        """Return the same load on a file of so many rows, each of which is asked once at most."""
        # GuideLLM 0.8.1 waits endlessly where the rows end before the requests that it is to make.
        return replace(self, requests=min(self.requests or rows, rows))

    def make_spec(self) -> dict[str, Any]:
        """Return GuideLLM's `profile`, `constraints`, `data` and `seed`, of the first level."""
        return {
            "profile": self._make_profile(),
            "constraints": self._list_constraints(),
            "data": [self._make_data()],
            "seed": {"kind": "static", "value": self.seed},
        }

    def list_levels(self) -> list[dict[str, Any] | None]:
        """Return the parts of GuideLLM's specification that change from level to level."""
        match self.profile:
            case Profile.CONCURRENT:
                return [{"profile.streams": streams} for streams in self._streams]
            case Profile.RATE:
                return [{"profile.rate": rate} for rate in self.rate]
            case _:
                return [None]

    def to_dict(self) -> Mapping[str, Any]:
        """Return the load in GuideLLM's terms, with its levels, for results."""
        return {**self.make_spec(), "levels": self.list_levels()}

    @property
    def _streams(self) -> Sequence[int]:
        return self.concurrency or (_CONCURRENCY,)

    def _make_profile(self) -> dict[str, Any]:
        match self.profile:
            case Profile.SYNCHRONOUS:
                return {"kind": "synchronous"}
            case Profile.CONCURRENT:
                return {"kind": "concurrent", "streams": self._streams[0]}
            case Profile.THROUGHPUT:
                most = self.concurrency[0] if self.concurrency else None
                return {"kind": "throughput", "max_concurrency": most}
            case Profile.RATE:
                return {"kind": "constant", "rate": self.rate[0]}

    def _list_constraints(self) -> list[dict[str, Any]]:
        requests = self.requests or (None if self.seconds else _REQUESTS)
        count = [{"kind": "max_requests", "count": requests}] if requests else []
        duration = [{"kind": "max_duration", "seconds": self.seconds}] if self.seconds else []
        return [*count, *duration]

    def _make_data(self) -> dict[str, Any]:
        if self.data is not None:
            return {"kind": f"{find_loader(self.data)}_file", "path": str(self.data)}
        return {
            "kind": "synthetic_text",
            "prompt_tokens": self.prompt_tokens or _PROMPT_TOKENS,
            "output_tokens": self.output_tokens,
        }
