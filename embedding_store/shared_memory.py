"""Memory that a process and its children share, and that nobody has to clean up.

One anonymous file (Linux: memfd), inherited by fork: it has no name, and the kernel takes it back with the last process
that has it, however that one ended. It is as long as anybody could want and takes memory only where it was written, so
that what grows gets a new place behind everything else, and its old place is given back.
"""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import numpy.typing as npt

from embedding_store.errors import StoreMisconfigured

_LENGTH = 2**56
_CLEARED = 2**30  # given back at a time: a mapping's own tables cost memory too

Bytes = npt.NDArray[np.uint8]


class SharedMemory:
    """The file. Made before the fork; each process maps the parts that it reads or writes."""

    def __init__(self) -> None:
        """Raises StoreMisconfigured where the system has no such files."""
        if sys.platform != "linux":
            raise StoreMisconfigured("several serving workers need Linux: set serving.workers to 1")
        self._file = os.memfd_create("towline-serving", os.MFD_CLOEXEC)
        os.ftruncate(self._file, _LENGTH)

    @property
    def nbytes(self) -> int:
        """Memory in use, of all processes together."""
        return os.fstat(self._file).st_blocks * 512

    def part(self, offset: int, length: int, *, writable: bool) -> Bytes:
        """(length,) bytes at `offset`, a multiple of `PAGE`. The mapping ends with the last array over it."""
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        return np.frombuffer(mmap.mmap(self._file, length, mmap.MAP_SHARED, access, offset=offset), np.uint8)

    def give_back(self, offset: int, length: int) -> None:
        """Its memory; who still looks sees zeros."""
        for start in range(offset, offset + length, _CLEARED):
            size = min(_CLEARED, offset + length - start)
            with mmap.mmap(self._file, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=start) as part:
                part.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Of this process; mappings go on."""
        os.close(self._file)


PAGE = mmap.ALLOCATIONGRANULARITY


def pages(length: int) -> int:
    """`length` rounded up to whole pages."""
    return -(-length // PAGE) * PAGE
