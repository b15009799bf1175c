"""Oracles in Python integers."""

import numpy as np
import pytest

from native.mixing import mix, mix_keys, partition, shard_of

M = (1 << 64) - 1


def mix_oracle(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return z ^ (z >> 31)


def test_mix_is_splitmix64():
    # the first outputs of the published generator seeded with 1234567
    gamma, state, got = 0x9E3779B97F4A7C15, 1234567, []
    for _ in range(3):
        state = (state + gamma) & M
        got.append(int(mix(np.uint64(state))))
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    for z in (0, 1, 2**63, M):
        assert int(mix(np.uint64(z))) == mix_oracle(z)


@pytest.mark.parametrize("shards", [1, 3, 8, 4096])
def test_shards_are_even_and_from_the_high_bits(shards):
    keys = np.arange(shards * 200, dtype=np.uint64)
    got = np.array([shard_of(k, shards) for k in keys])
    assert [int(s) for s in got[:50]] == [((mix_oracle(k) >> 32) * shards) >> 32 for k in range(50)]
    assert np.bincount(got, minlength=shards).min() > 100


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_partition_is_a_stable_sort_by_shard(n):
    keys = np.random.default_rng(n).integers(0, 2**64, n, np.uint64)
    keys.flags.writeable = False
    starts, order = np.zeros(6, np.int64), np.empty(n, np.int64)
    partition(keys, starts, order)
    shard = np.array([shard_of(k, 5) for k in keys], np.int64)
    np.testing.assert_array_equal(order, np.argsort(shard, kind="stable"))
    np.testing.assert_array_equal(starts, np.searchsorted(np.sort(shard), np.arange(6)))


def test_places_are_the_low_bits_of_the_mixed_key():
    keys = np.random.default_rng(0).integers(0, 2**64, 9, np.uint64)
    keys.flags.writeable = False
    out = np.empty(9, np.int64)
    mix_keys(keys, 1023, out)
    assert out.tolist() == [int(mix(key)) & 1023 for key in keys]
    mix_keys(keys[:0], 1023, out[:0])
