"""Two runs side by side."""

from evalution.comparison.comparison import (
    Comparison,
    Flip,
    MetricComparison,
    SuiteComparison,
    compare,
)
from evalution.comparison.significance import PairedTest

__all__ = [
    "Comparison",
    "Flip",
    "MetricComparison",
    "PairedTest",
    "SuiteComparison",
    "compare",
]
