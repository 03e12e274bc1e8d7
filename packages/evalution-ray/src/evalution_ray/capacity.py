"""The capacity of a cluster for actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_OBJECTS = ("object_store_memory", "node:")
_LITTLE = 1e-9


def count_actors(nodes: Sequence[Mapping[str, Any]], need: Mapping[str, float]) -> int:
    """Return how many actors the living nodes could hold together if they were empty."""
    return sum(_count_on_node(node["Resources"], need) for node in nodes if node["Alive"])


def format_resources(resources: Mapping[str, float]) -> str:
    """Return resources in words: `CPU 2, GPU 1`."""
    shown = {
        name: amount for name, amount in sorted(resources.items()) if not name.startswith(_OBJECTS)
    }
    return (
        ", ".join(f"{name} {_format_amount(name, amount)}" for name, amount in shown.items())
        or "none"
    )


def format_nodes(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return each living node with its total resources."""
    return "; ".join(
        f"node {node['NodeManagerAddress']}: {format_resources(node['Resources'])}"
        for node in nodes
        if node["Alive"]
    )


def _count_on_node(has: Mapping[str, float], need: Mapping[str, float]) -> int:
    return min(int(has.get(name, 0.0) / amount + _LITTLE) for name, amount in need.items())


def _format_amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name == "memory" else f"{amount:g}"
