"""A pass by several threads has the answer of one by one."""

import threading

import numpy as np
import pytest

from embedding_store import scanning
from embedding_store.scanning import Asked, Items, Scanner
from native.coarse import encode, tiles


def world(n: int, users: int, seed: int) -> tuple[Items, Asked, int]:
    """Small integers: scores are exact and tie often."""
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-3, 4, (n, 6)).astype(np.float32)
    popularity = np.log(rng.integers(1, 4, n)).astype(np.float32)
    popularity[rng.random(n) < 0.2] = -np.inf
    codes, scales = np.zeros(tiles(n, 6), np.uint8), np.zeros(n, np.float32)
    encode(vectors, np.arange(n), codes, scales)
    excluded = [np.sort(rng.integers(-1, n, size)) for size in rng.integers(0, 9, users)]
    masks = rng.random((1, n)) < 0.3
    asked = Asked(
        rng.integers(-3, 4, (users, 6)).astype(np.float32),
        rng.choice([0.0, 1.0], users).astype(np.float32),
        np.concatenate([[0], np.cumsum([len(own) for own in excluded])]).astype(np.int64),
        np.concatenate([*excluded, np.zeros(0, np.int64)]).astype(np.int64),
        masks,
        rng.integers(-1, 1, users),
        rng.integers(0, 30, users),
    )
    return Items(vectors, popularity, np.float32(-1), codes, scales), asked, int(popularity.argmax())


def answered(scanner: Scanner, items: Items, asked: Asked, likely: int) -> list[tuple[list[int], list[float]]]:
    slots = np.empty((len(asked.k), 30), np.int64)
    best = np.full(slots.shape, -np.inf, np.float32)
    sizes = scanner.top_k(items, asked, likely, slots, best)
    return [(slots[u, :size].tolist(), best[u, :size].tolist()) for u, size in enumerate(sizes)]


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize(("n", "users"), [(1, 1), (128, 3), (129, 1), (700, 2), (1500, 9), (5, 4)])
def test_a_pass_by_several_threads_has_the_answer_of_one(monkeypatch, threads, n, users):
    items, asked, likely = world(n, users, seed=n + users)
    alone = answered(Scanner(), items, asked, likely)
    assert any(slots for slots, _ in alone) or not asked.k.any() or n < 6
    monkeypatch.setattr(scanning, "_LEAST", 1)  # however little there is, all threads have a part
    scanner = Scanner(threads)
    assert answered(scanner, items, asked, likely) == alone
    scanner.close()


def test_passes_at_the_same_time_do_not_mix(monkeypatch):
    monkeypatch.setattr(scanning, "_LEAST", 1)
    worlds = [world(900, 5, seed) for seed in range(6)]
    expected = [answered(Scanner(), *one) for one in worlds]
    scanner, got = Scanner(3), [[] for _ in worlds]

    def ask(number: int) -> None:
        for _ in range(20):
            got[number].append(answered(scanner, *worlds[number]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(worlds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scanner.close()
    assert got == [[one] * 20 for one in expected]


def test_a_little_is_not_cut():
    """Another thread takes longer to wake up than it would take."""
    items, asked, likely = world(300, 2, seed=0)
    scanner = Scanner(4)
    scanner.close()  # whoever would cut now is refused
    answered(scanner, items, asked, likely)
