from __future__ import annotations

import math

import numpy as np
import pytest

from evalution_reference.llama import RotaryTable, apply_rope, inverse_frequencies
from evalution_reference.llama_config import RopeScaling

FLOAT64 = np.dtype(np.float64)


def test_first_plane_turns_one_radian_and_the_last_almost_theta_times_less() -> None:
    frequencies = inverse_frequencies(8, 10000.0)
    np.testing.assert_allclose(frequencies, [1.0, 0.1, 0.01, 0.001], rtol=1e-15)


def test_a_plane_is_made_of_the_entries_half_a_head_apart() -> None:
    states = np.array([[[3.0, 5.0, 4.0, 6.0]]])
    quarter, none = math.pi / 2, 0.0
    cos, sin = np.cos([[quarter, none]]), np.sin([[quarter, none]])
    np.testing.assert_allclose(apply_rope(states, cos, sin), [[[-4.0, 5.0, 3.0, 6.0]]])


def test_products_depend_on_the_distance_alone() -> None:
    generator = np.random.default_rng(0)
    query, key = generator.standard_normal((2, 1, 1, 16))
    table = RotaryTable(16, 500.0, None, FLOAT64)

    def product(query_at: int, key_at: int) -> float:
        rotated_query = apply_rope(query, *table.cos_sin(np.array([query_at])))
        rotated_key = apply_rope(key, *table.cos_sin(np.array([key_at])))
        return float(np.vdot(rotated_query, rotated_key))

    assert product(7, 3) == pytest.approx(product(104, 100), abs=1e-12)
    assert product(7, 3) != pytest.approx(product(7, 4), abs=1e-3)


def test_table_is_the_same_however_it_grew() -> None:
    grown = RotaryTable(8, 10000.0, None, np.dtype(np.float32))
    for position in (0, 3, 4, 40):
        grown.cos_sin(np.array([position]))
    whole = RotaryTable(8, 10000.0, None, np.dtype(np.float32))
    positions = np.arange(41)
    for one, other in zip(grown.cos_sin(positions), whole.cos_sin(positions), strict=True):
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, other)


def test_linear_scaling_stretches_positions() -> None:
    plain = RotaryTable(8, 10000.0, None, FLOAT64)
    scaled = RotaryTable(8, 10000.0, RopeScaling("linear", 4.0), FLOAT64)
    np.testing.assert_allclose(
        scaled.cos_sin(np.array([20]))[0], plain.cos_sin(np.array([5]))[0], atol=1e-14
    )


def test_llama3_scaling_keeps_short_waves_divides_long_ones_and_blends_between() -> None:
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    plain = inverse_frequencies(128, 500000.0)
    scaled = inverse_frequencies(128, 500000.0, scaling)
    wavelengths = 2 * math.pi / plain
    short, long = wavelengths < 8192 / 4, wavelengths > 8192
    assert 0 < short.sum() < short.sum() + long.sum() < len(plain)
    assert long.any()
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=1e-15)
    between = ~(short | long)
    assert (scaled[between] < plain[between]).all()
    assert (scaled[between] > plain[between] / 8).all()
