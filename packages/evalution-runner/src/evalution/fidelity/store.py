"""The folder of a measurement: `fidelity.json`, and the badge beside it.

Its own module, as the values know nothing of the badge that is made of them.
"""

from __future__ import annotations

from pathlib import Path

from evalution.fidelity.badge import make_badge
from evalution.fidelity.result import SCHEMA_VERSION, FidelityResult
from evalution.result_file import ResultFile, write_whole

BADGE = "fidelity.svg"
FIDELITY_FILE = ResultFile(
    name="fidelity.json",
    type=FidelityResult,
    what="a fidelity measurement",
    command="evalution fidelity REFERENCE CANDIDATE --output DIR",
    newest_schema=SCHEMA_VERSION,
)
read_fidelity = FIDELITY_FILE.read


def write_fidelity(result: FidelityResult, folder: Path) -> Path:
    """Write the badge, then `fidelity.json`, each whole or not at all; return where the latter is.

    Raises:
        ResultsNotWrittenError: the disk is full, or the folder is gone.
    """
    write_whole(folder / BADGE, make_badge(result))
    return FIDELITY_FILE.write(result, folder)
