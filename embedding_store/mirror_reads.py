"""What is asked of a mirror of the items, wherever its arrays lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, U64, Bool
from embedding_store.feature_mirror import FeatureMirror
from embedding_store.item_filter import ItemFilter
from embedding_store.model import ModelSettings
from embedding_store.towers import Gates, Layers, Towers
from native.gather import gather
from native.scan import score_items

U8 = npt.NDArray[np.uint8]
_LN2 = float(np.log(2.0))


@dataclass(frozen=True, slots=True)
class MirrorRows:
    """Items as the mirror holds them; row i answers key i, zeros and found False where it has none."""

    vectors: F32  # (n, output_dim) outputs of the item tower
    found: Bool  # (n,)
    clock: I64  # (n,)
    count: I64  # (n,)
    updated_ms: I64  # (n,)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Items as bytes go out; a row with NaN or infinity is as good as missing."""

    vectors: F32  # (n, output_dim), zeros where missing
    bitmap: npt.NDArray[np.uint8]  # (ceil(n / 8),) which are found, lowest bit first
    found: int
    refused: int  # rows with NaN or infinity
    clock: int  # the lowest of those found, 0 where none is
    updated_ms: int  # likewise


class Lock(Protocol):
    """Holds one state of a mirror for this thread, over any number of reads; may be taken again by who has it."""

    def acquire(self, blocking: bool = True) -> bool:
        """Whether it is held now; where not `blocking`, False rather than wait."""

    def release(self) -> None:
        """Once for each `acquire`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Places(Protocol):
    """Where keys are: see `native.key_index.KeyIndex`."""

    def find(self, keys: U64) -> I64:
        """(n,) slot of each key, -1 where absent."""

    @property
    def slot_keys(self) -> U64:
        """(high_water,) key of each slot."""

    @property
    def high_water(self) -> int:
        """Slots that may hold an item."""

    def __len__(self) -> int: ...


class Ids(Protocol):
    """Canonical bytes by slot."""

    def __getitem__(self, slot: int, /) -> bytes: ...


class MirrorReads(ABC):
    """A mirror to those who read it. Who fills its arrays, which have a place per slot, keeps what else it needs.

    Popularity decays on the event clock: ln(popularity at t) = ln p + ln 2·(A − t)/half-life, where p was stored at
    clock A. The part with t is common to all items, so what is kept per item is the constant `ln p + ln 2·A/half-life`.
    """

    lock: Lock
    _model: ModelSettings
    _index: Places
    _vectors: F32  # (capacity, dim) rows
    _outputs: F32  # (capacity, output_dim) outputs of the item tower; `_vectors` where these are the same
    _codes: U8  # of the outputs, always in step with them: see `native.coarse`
    _scales: F32  # (capacity,) likewise
    _bias: F32  # (capacity,) log popularity below `_offset`
    _columns: dict[str, I64]  # clock, count, updated_ms: (capacity,) each
    _ids: Ids
    _offset: float
    _towers: Towers
    features: FeatureMirror | None = None  # of the model's declared features, if it has any

    def __init__(self, model: ModelSettings) -> None:
        self._model = model
        self._half_life = float(model.popularity_half_life)
        self._log_floor = float(np.log(model.popularity_floor))
        self._raw_are_outputs = not model.dense_layers and model.similarity == "dot"

    @property
    @abstractmethod
    def clock(self) -> int:
        """Usable events that the rows reflect: of the shard that is behind."""

    @property
    @abstractmethod
    def event_time_ms(self) -> int:
        """Event time up to which the stream is reflected; 0 before the first event."""

    @property
    @abstractmethod
    def produced_ms(self) -> int:
        """Newest record timestamp that is reflected."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory of its arrays."""

    @property
    def size(self) -> int:
        """Items held."""
        return len(self._index)

    def spread(self, limit: int) -> U64:
        """Keys of at most `limit` items, spread evenly over the order in which they came."""
        with self.lock:
            high = self._index.high_water
            places = np.arange(0, high, max(1, -(-high // limit)))
            keys = self._index.slot_keys[places]
            held: U64 = keys[self._index.find(keys) == places]  # without freed slots
        return held

    def items(self, keys: U64) -> MirrorRows:
        """Rows of `keys`, in their order."""
        with self.lock:
            slots = self._index.find(keys)
            found = slots >= 0
            if found.all():
                columns = {name: column[slots] for name, column in self._columns.items()}
                return MirrorRows(vectors=self._outputs[slots], found=found, **columns)
            safe = np.where(found, slots, 0)
            vectors = np.where(found[:, None], self._outputs[safe], np.float32(0.0))
            columns = {name: np.where(found, column[safe], 0) for name, column in self._columns.items()}
            return MirrorRows(vectors=vectors, found=found, **columns)

    def gathered(self, keys: U64) -> Gathered:
        """Outputs of `keys`, in their order, in one pass."""
        out = np.empty((len(keys), self._model.output_dim), np.float32)
        bitmap = np.empty(-(-len(keys) // 8), np.uint8)
        with self.lock:
            slots = self._index.find(keys)
            clock, _, updated_ms = self._columns.values()
            return Gathered(out, bitmap, *gather(slots, self._outputs, clock, updated_ms, out, bitmap))

    def item(self, keys: U64) -> tuple[F32, int, int, int] | None:
        """(output (output_dim,), clock, count, updated_ms) of the only key of `keys` (1,); None where it is missing."""
        with self.lock:
            slot = int(self._index.find(keys)[0])
            if slot < 0:
                return None
            clock, count, updated_ms = (int(column[slot]) for column in self._columns.values())
            return self._outputs[slot].copy(), clock, count, updated_ms

    def raw_vectors(self, keys: U64) -> tuple[F32, Bool]:
        """((n, dim) rows before the item tower, (n,) found): what user histories are pooled from."""
        with self.lock:
            slots = self._index.find(keys)
            found = slots >= 0
            return self._vectors[np.where(found, slots, 0)], found

    @property
    def user_layers(self) -> Layers:
        """Dense layers of the user tower, of the same version as the items' outputs."""
        return self._towers.user

    @property
    def item_layers(self) -> Layers:
        """Those of the item tower, likewise."""
        return self._towers.item

    @property
    def gates(self) -> Gates:
        """Gates, likewise."""
        return self._towers.gates

    def slots(self, keys: U64) -> I64:
        """(n,) place of each key in the arrays that `scores` fills, -1 where absent. Valid under `lock`."""
        return self._index.find(keys)

    def scores(self, vector: F32 | None, popularity_weight: float, slots: I64 | None = None) -> F32:
        """(high water,) score of every slot: vector·item + weight·ln(popularity / the most popular's), see `columns`.

        slots: of these alone, in their order.

        Call under `lock`. -inf for items that no positive event has named yet. None scores by popularity alone.
        """
        outputs, popularity, floor = self.columns()
        if slots is not None:
            outputs, popularity = outputs[slots], popularity[slots]
        if vector is None:
            return popularity.copy()
        out = np.empty(len(popularity), np.float32)
        user = np.ascontiguousarray(vector, np.float32)
        score_items(outputs, popularity, floor, user, np.float32(popularity_weight), out)
        return out

    def columns(self) -> tuple[F32, F32, np.float32]:
        """What scores are made of, one place per slot: (item outputs, log popularity, what it counts as at least).

        Call under `lock`: views. Log popularity is below that of the most popular item, -inf where no positive event
        has named the item.
        """
        n = self._index.high_water
        floor = self._log_floor + _LN2 * self.clock / self._half_life - self._scale
        return self._outputs[:n], self._bias[:n], np.float32(floor)

    def log_popularity(self, keys: U64) -> F32:
        """(n,) ln of decayed popularity at `clock`, of `popularity_floor` at least, as for keys it does not know.

        Call under `lock`.
        """
        slots = self._index.find(keys)
        _, popularity, floor = self.columns()
        over = np.zeros(len(keys), np.float32)
        known = slots >= 0
        over[known] = np.maximum(popularity[slots[known]] - floor, np.float32(0.0))
        return over + np.float32(self._log_floor)

    def coarse(self) -> tuple[U8, F32]:
        """(codes, scales) of the outputs of `columns`: `native.coarse`. Call under `lock`."""
        return self._codes, self._scales

    def passing(self, wanted: ItemFilter) -> Bool:
        """(high water,) whether the item of each slot passes a filter. Call under `lock`: a view.

        Of a model that declares features of items alone.
        """
        raise NotImplementedError("this mirror has no features of items")

    def gains(self, positives: F32) -> F32:
        """(n,) what events (n,) on top of the clock add to popularity, each in logs and on the scale of `columns`."""
        clocks = self.clock + 1.0 + np.arange(len(positives))
        with np.errstate(divide="ignore"):
            log_p = np.log(positives.astype(np.float64)) + _LN2 * clocks / self._half_life
        out: F32 = (log_p - self._scale).astype(np.float32)
        return out

    @property
    def _scale(self) -> float:
        """What log popularity is told below: the largest, or as good as any where no item is popular yet."""
        return self._offset if np.isfinite(self._offset) else _LN2 * self.clock / self._half_life

    def describe(self, slots: I64) -> tuple[U64, list[bytes], I64, I64]:
        """(keys, ids, clocks, updated_ms) of slots. Call under `lock`."""
        ids = [self._ids[s] for s in slots.tolist()]
        return self._index.slot_keys[slots], ids, self._columns["clock"][slots], self._columns["updated_ms"][slots]
