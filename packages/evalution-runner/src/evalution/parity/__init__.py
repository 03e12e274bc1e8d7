"""Two engines asked the same token ids, and how far their answers agree."""

from evalution.parity.check import check_parity
from evalution.parity.result import (
    ChoiceFlip,
    DifferenceStats,
    Divergence,
    ParityResult,
    SuiteParity,
    TokenDifference,
    Tolerance,
    Uncompared,
    read_parity,
    write_parity,
)

__all__ = [
    "ChoiceFlip",
    "DifferenceStats",
    "Divergence",
    "ParityResult",
    "SuiteParity",
    "TokenDifference",
    "Tolerance",
    "Uncompared",
    "check_parity",
    "read_parity",
    "write_parity",
]
