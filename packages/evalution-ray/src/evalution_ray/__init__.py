"""Replicas of any Evalution engine on a Ray cluster."""

from evalution_ray.engine import RayReplicas

__all__ = ["RayReplicas"]
