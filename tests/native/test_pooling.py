"""Pooling against NumPy in float64, and its gradients against finite differences."""

import numpy as np
import pytest

from native.pooling import add_rows, gate_gradients, gather_add, pool_gradients, pool_histories

SHAPES = [(0, 0, 3, 5, 1), (1, 0, 3, 2, 2), (0, 4, 3, 2, 1), (9, 6, 1, 1, 1), (5, 40, 7, 6, 2), (30, 25, 20, 33, 3)]
BUCKETS = 4


def case(u, batch, length, dim, clocks):
    rng = np.random.default_rng(u + 10 * batch)
    vectors = rng.normal(size=(u, dim)).astype(np.float32)
    slots = rng.integers(-1, u, (batch, length)) if u else np.full((batch, length), -1, np.int64)
    if u and batch > 2:
        slots[0] = -1  # nobody there
        slots[1] = 0  # one item, again and again
        slots[2, :-1] = -1  # only the oldest is left
    logits = rng.normal(0, 2, (clocks, length)).astype(np.float32)
    scales = rng.normal(1, 0.5, (clocks, BUCKETS)).astype(np.float32)
    bucket = rng.integers(0, BUCKETS, batch)
    columns = vectors, slots, logits, scales, bucket
    for array in columns:
        array.flags.writeable = False
    return columns


def oracle(vectors, slots, logits, scales, bucket):
    clocks = len(logits)
    part = vectors.shape[1] // clocks
    out = np.zeros((len(slots), vectors.shape[1]))
    for b, row in enumerate(slots):
        there = row >= 0
        if there.any():
            for v in range(clocks):
                share = np.exp(logits[v, there].astype(np.float64) - logits[v, there].max())
                cut = slice(v * part, (v + 1) * part)
                out[b, cut] = scales[v, bucket[b]] * (share / share.sum()) @ vectors[row[there], cut].astype(np.float64)
    return out


def pooled(vectors, slots, logits, scales, bucket):
    out = np.full((len(slots), vectors.shape[1]), 7.0, np.float32)  # what was there does not matter
    shares = np.full((len(slots), *logits.shape), 7.0, np.float32)
    pool_histories(vectors, slots, logits, scales, bucket, shares, out)
    return out, shares


@pytest.mark.parametrize("shape", SHAPES)
def test_pooling_is_the_softmax_weighted_mean_of_each_part(shape):
    columns = case(*shape)
    out, shares = pooled(*columns)
    np.testing.assert_allclose(out, oracle(*columns), rtol=1e-5, atol=1e-6)
    there = (columns[1] >= 0).any(axis=1)
    np.testing.assert_allclose(shares.sum(axis=2), np.broadcast_to(there[:, None], shares.shape[:2]), atol=1e-6)
    assert not shares[~np.broadcast_to((columns[1] >= 0)[:, None], shares.shape)].any()


def test_logits_of_a_recency_give_its_weighted_mean():
    vectors, slots, _, _, bucket = case(5, 40, 7, 6, 2)
    logits = np.log(0.8) * np.arange(7, dtype=np.float32)[None]
    out, _ = pooled(vectors, slots, logits.astype(np.float32), np.ones((1, BUCKETS), np.float32), bucket)
    w = 0.8 ** np.arange(7) * (slots >= 0)
    w = np.divide(w, w.sum(axis=1, keepdims=True), out=np.zeros_like(w), where=(slots >= 0).any(axis=1)[:, None])
    np.testing.assert_allclose(out, np.einsum("bk,bkj->bj", w, vectors.astype(np.float64)[slots]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_finite_differences(shape):
    vectors, slots, logits, scales, bucket = case(*shape)
    upstream = np.random.default_rng(1).normal(size=(len(slots), vectors.shape[1])).astype(np.float32)
    upstream.flags.writeable = False
    _, shares = pooled(vectors, slots, logits, scales, bucket)
    got = np.full(vectors.shape, 0.5, np.float32), np.full(logits.shape, 0.25, np.float32), np.zeros_like(scales)
    pool_gradients(upstream, slots, shares, scales, bucket, got[0])
    gate_gradients(np.arange(len(slots)), upstream, vectors, slots, shares, scales, bucket, got[1], got[2])

    def loss(at, i, step):
        arrays = [a.astype(np.float64) for a in (vectors, logits, scales)]
        arrays[at].reshape(-1)[i] += step
        return (oracle(arrays[0], slots, arrays[1], arrays[2], bucket) * upstream).sum()

    rng = np.random.default_rng(2)
    for at, (found, start) in enumerate(zip(got, (0.5, 0.25, 0.0), strict=True)):
        for i in rng.permutation(found.size)[:25].tolist():
            want = (loss(at, i, 1e-4) - loss(at, i, -1e-4)) / 2e-4
            assert found.reshape(-1)[i] - start == pytest.approx(want, rel=1e-3, abs=2e-4)


@pytest.mark.parametrize(("n", "u", "dim"), [(0, 3, 2), (5, 1, 1), (60, 4, 7)])
def test_add_rows_is_add_at(n, u, dim):
    rng = np.random.default_rng(n)
    values, rows = rng.normal(size=(n, dim)).astype(np.float32), rng.integers(-2, u, n)
    out = rng.normal(size=(u, dim)).astype(np.float32)
    want = out.astype(np.float64)
    np.add.at(want, rows[rows >= 0], values[rows >= 0])
    for array in (values, rows):
        array.flags.writeable = False
    add_rows(values, rows, out)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_what_is_left_shares_by_itself_however_far_below_the_others_it_is():
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    logits, one = np.array([[0.0, -200.0, -201.0]], np.float32), np.ones((1, BUCKETS), np.float32)
    slots, bucket = np.array([[-1, 1, 2], [0, 1, 2]]), np.zeros(2, np.int64)
    shares, out = np.empty((2, 1, 3), np.float32), np.empty((2, 2), np.float32)
    pool_histories(vectors, slots, logits, one, bucket, shares, out)
    newer = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(shares[:, 0], [[0, newer, 1 - newer], [1, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(out[0], newer * vectors[1] + (1 - newer) * vectors[2], rtol=1e-6)


def test_rows_are_gathered_and_added():
    values, out = np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((4, 2), np.float32)
    gather_add(values, np.array([2, -1, 0, 2]), out)
    np.testing.assert_array_equal(out, [[5, 6], [1, 1], [1, 2], [5, 6]])
