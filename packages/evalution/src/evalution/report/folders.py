"""What a person names for a report: folders of runs, of parity checks, or of both."""

from __future__ import annotations

import os
from collections.abc import Sequence

from evalution.parity import ParityResult, read_parity
from evalution.parity.file import PARITY
from evalution.results import RunResult
from evalution.runs.folder import RESULTS
from evalution.runs.reader import read_run
from evalution.user_input import parse_path, path_errors


def read_folders(
    paths: Sequence[str | os.PathLike[str]],
) -> tuple[list[RunResult], list[ParityResult]]:
    """The runs and the parity checks in the folders, in their order; a folder may hold both.

    Raises:
        ConfigurationError: a folder holds neither, or a file in it is damaged or of a newer
            version.
    """
    runs: list[RunResult] = []
    checks: list[ParityResult] = []
    for given in paths:
        path = parse_path(os.fspath(given))
        with path_errors(path):
            has_check = path.name == PARITY or (path / PARITY).is_file()
            has_run = path.name != PARITY and (path / RESULTS).is_file()
        if has_check:
            checks.append(read_parity(path))
        if has_run or not has_check:
            runs.append(read_run(path))
    return runs, checks
