"""Print what importing each module costs, as a ratio to importing the base module.

Every measurement is a fresh interpreter, the pairs are interleaved, and the ratio is the median of
the ratios of the pairs. Names and repetitions stand in import_cost.toml.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

PROBE = """
import sys, time
before, start = len(sys.modules), time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - start, len(sys.modules) - before)
"""


@dataclass(frozen=True)
class Cost:
    seconds: float
    modules: int


def measure(module: str) -> Cost:
    """Import `module` in a fresh interpreter."""
    command = [sys.executable, "-c", PROBE, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, modules = done.stdout.split()
    return Cost(float(seconds), int(modules))


def interleaved(base: str, module: str, pairs: int) -> list[tuple[Cost, Cost]]:
    """Return (base, module) costs, measured in alternating order."""
    costs: list[tuple[Cost, Cost]] = []
    for index in range(pairs):
        if index % 2:
            second, first = measure(module), measure(base)
        else:
            first, second = measure(base), measure(module)
        costs.append((first, second))
    return costs


def main() -> None:
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    base: str = config["base"]
    for module in [base, *config["modules"]]:
        # The first import after an installation compiles byte code.
        measure(module)
    print(f"{'module':<24}{'ms':>8}{'modules':>9}{'ratio to ' + base:>20}")
    for module in config["modules"]:
        costs = interleaved(base, module, config["pairs"])
        milliseconds = 1000 * statistics.median(cost.seconds for _, cost in costs)
        ratio = statistics.median(cost.seconds / first.seconds for first, cost in costs)
        print(f"{module:<24}{milliseconds:>8.1f}{costs[0][1].modules:>9}{ratio:>20.2f}")


if __name__ == "__main__":
    main()
