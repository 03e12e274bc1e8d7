"""Two engines asked the same token ids, and how far their answers agree."""

from evalution.parity.check import check_parity
from evalution.parity.file import read_parity, write_parity
from evalution.parity.result import (
    ChoiceFlip,
    Divergence,
    ParityResult,
    SuiteParity,
    TokenDifference,
    Tolerance,
    Uncompared,
)
from evalution.parity.spread import Spread

__all__ = [
    "ChoiceFlip",
    "Divergence",
    "ParityResult",
    "Spread",
    "SuiteParity",
    "TokenDifference",
    "Tolerance",
    "Uncompared",
    "check_parity",
    "read_parity",
    "write_parity",
]
