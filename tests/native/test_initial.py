"""Initial vectors against an oracle in Python integers."""

import math

import numpy as np
import pytest

from native.initial import fill_missing
from tests.native.test_mixing import M, mix_oracle

G = 0x9E3779B97F4A7C15


def oracle(seed: int, std: float, key: int, dim: int) -> list[np.float32]:
    base = mix_oracle((key + mix_oracle((seed + G) & M)) & M)
    scale = std / math.sqrt((2.0**32 - 1.0) / 3.0)
    out = []
    for j in range(dim):
        x = mix_oracle((base + (j + 1) * G) & M)
        out.append(np.float32((sum((x >> s) & 0xFFFF for s in (0, 16, 32, 48)) - 131070) * scale))
    return out


@pytest.mark.parametrize("dim", [1, 7, 64])
def test_every_bit_is_the_formula(dim):
    keys = np.array([0, 1, 2**63, M, 42], np.uint64)
    keys.flags.writeable = False
    found = np.array([False, False, False, False, True])
    out = np.full((5, dim), 9, np.float32)
    fill_missing(77, 0.03, keys, found, out)
    assert out[:4].tolist() == [oracle(77, 0.03, int(k), dim) for k in keys[:4]]
    assert (out[4] == 9).all()


def test_near_normal_and_uncorrelated():
    keys = np.arange(20_000, dtype=np.uint64)
    out = np.empty((20_000, 8), np.float32)
    fill_missing(1, 0.5, keys, np.zeros(20_000, np.bool_), out)
    assert abs(out.mean()) < 0.005
    assert out.std() == pytest.approx(0.5, rel=0.01)
    assert np.abs(np.corrcoef(out.T) - np.eye(8)).max() < 0.03
    assert np.abs(np.corrcoef(out[:-1, 0], out[1:, 0])[0, 1]) < 0.03  # neighbouring keys
    assert np.mean((out / 0.5) ** 4) == pytest.approx(3 - 1.2 / 4, rel=0.05)  # kurtosis of Irwin-Hall 4


def test_std_zero_is_plus_zero_and_no_rows_is_fine():
    out = np.full((1, 3), 5, np.float32)
    fill_missing(1, 0.0, np.array([3], np.uint64), np.array([False]), out)
    assert out.tobytes() == bytes(12)
    fill_missing(1, 1.0, np.zeros(0, np.uint64), np.zeros(0, np.bool_), np.zeros((0, 3), np.float32))
