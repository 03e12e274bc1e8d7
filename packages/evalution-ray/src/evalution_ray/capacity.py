"""What an actor takes of a node, and how many a cluster has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_OBJECTS = ("object_store_memory", "node:")
_LITTLE = 1e-9


def rooms(nodes: Sequence[Mapping[str, Any]], need: Mapping[str, float]) -> int:
    """How many actors the living nodes can hold together, were they empty."""
    return sum(_rooms(node["Resources"], need) for node in nodes if node["Alive"])


def described(resources: Mapping[str, float]) -> str:
    """As words: `CPU 2, GPU 1`."""
    shown = {
        name: amount for name, amount in sorted(resources.items()) if not name.startswith(_OBJECTS)
    }
    return ", ".join(f"{name} {_amount(name, amount)}" for name, amount in shown.items()) or "none"


def described_nodes(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Each living node with what it has in all."""
    return "; ".join(
        f"node {node['NodeManagerAddress']}: {described(node['Resources'])}"
        for node in nodes
        if node["Alive"]
    )


def _rooms(has: Mapping[str, float], need: Mapping[str, float]) -> int:
    return min(int(has.get(name, 0.0) / amount + _LITTLE) for name, amount in need.items())


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name == "memory" else f"{amount:g}"
