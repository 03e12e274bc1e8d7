"""One engine against itself: which conditions change its numbers, and by how much."""

from evalution.noise.measurement import measure_noise
from evalution.noise.result import NoiseResult, read_noise, write_noise

__all__ = ["NoiseResult", "measure_noise", "read_noise", "write_noise"]
