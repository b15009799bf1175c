"""Chunks of the slab: their size, and the memory that is asked to be on huge pages."""

import ctypes as c
from pathlib import Path

import pytest

from native.redis_module.compiler import FOLDERS, build_library

HERE = Path(__file__).parent
KIB = 1 << 10


class Growth(c.Structure):
    _fields_ = tuple(
        (name, c.c_int64) for name in ("chunks", "largest", "held", "wishes", "misplaced", "repeated", "least_share")
    )


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    sources = [FOLDERS[0] / "slab.c", HERE / "slab_growth.c"]
    library = c.CDLL(str(build_library(tmp_path_factory.mktemp("slab") / "slab.so", sources)))
    library.slab_growth.restype = c.c_bool
    library.slab_growth.argtypes = [c.c_uint32, c.c_uint32, c.c_size_t, c.c_bool, c.c_void_p]

    def grow(size, objects, gap=4 * KIB, asks=True):
        out = Growth()
        assert library.slab_growth(size, objects, gap, asks, c.byref(out))
        assert out.held == 0
        return out

    return grow


@pytest.mark.parametrize(
    ("size", "objects", "largest"),
    [
        (320, 1_000, 64 * KIB),
        (320, 60_000, 128 * KIB),  # from 16 MiB on
        (320, 450_000, 1024 * KIB),
        (16, 2_000_000, 64 * KIB),  # 4096 slots are no more
        (64, 600_000, 256 * KIB),
        (49_152, 1_000, 16 * 49_152 + 63),
    ],
)
def test_chunks_grow_with_their_class_and_are_a_small_part_of_it(grown, size, objects, largest):
    growth = grown(size, objects)
    assert growth.largest == largest
    if size < 4096 and largest > 64 * KIB:
        assert growth.least_share >= 128


def test_memory_that_chunks_have_filled_is_asked_to_be_huge_once(grown):
    growth = grown(320, 100_000)
    assert growth.misplaced == growth.repeated == 0
    assert 13 <= growth.wishes <= 16  # of 31 MiB, without the ends


def test_chunks_far_apart_ask_only_where_one_fills_a_huge_page(grown):
    assert grown(320, 20_000, gap=600 * KIB).wishes == 0


def test_nobody_is_asked_where_there_is_nobody(grown):
    assert grown(320, 100_000, asks=False).wishes == 0
