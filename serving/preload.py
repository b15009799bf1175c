"""What each request needs of compiled code, taken once before there are processes: they inherit it."""

from __future__ import annotations

import gc

from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.shared_board import Board
from embedding_store.shared_memory import SharedMemory
from embedding_store.shared_mirror import Publisher, SharedMirror, Sides
from serving.service import Live


def preload() -> None:
    """Takes every path of a request over a small mirror in shared memory, whose arrays are read-only."""
    model = ModelSettings(dim=2, seen_length=20)
    store = MemoryStore()
    for spec in model.tables().values():
        store.create(spec)
    mirror = ItemMirror(store, model)
    mirror.refresh()
    memory = SharedMemory()
    board = Board(memory)
    Publisher(board, mirror, model.document()).publish()
    shared = SharedMirror(Sides(board, board.newest(), model, 0))
    for one in (mirror, shared):
        Live.of(store, model.document(), model, one).warm_up()
    memory.close()
    settle()


def settle() -> None:
    """What is there now stays: the collector leaves it alone from now on.

    It would hold up everything for 60 ms to look through all that compiled code is made of, and write to every page
    that forked processes could share.
    """
    gc.collect()
    gc.freeze()
