"""Stages that measure Evalution on a machine with one NVIDIA GPU: docs/gpu.md."""
