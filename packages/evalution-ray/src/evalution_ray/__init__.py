"""Replicas of any Evalution engine on a Ray cluster."""
