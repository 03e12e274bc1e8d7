"""Tinker-compatible servers as an Evalution engine."""
