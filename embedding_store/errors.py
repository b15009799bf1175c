"""Every error of the store.

StoreError
├── SpecError            a table declaration that can't be used
│   └── SpecConflict     the store holds the table with another declaration
├── UnknownTable         no such table was created
├── BadRequest           wrong shapes, types, duplicate keys, not-finite values: nothing was applied
├── GenerationError      the call is of another store generation: the store was restored or rewound since
├── SeekConflict         compare-and-set of an offset found another value
├── CallOutOfTurn        a training client's call does not follow what the store has of it
├── SnapshotError        a snapshot that is missing, damaged or of another kind of store: nothing was changed
├── MirrorFileRefused    a mirror's file that is damaged, or of another model, store or time
├── StoreMisconfigured   the server would break guarantees (an evicting maxmemory-policy, too old)
└── StoreUnavailable     the server can't be reached or refuses for now: retry with back-off, then reconcile
    ├── StoreFull        out of memory: shards that refused applied nothing
    └── StoreBeingRestored   a restore from a snapshot has begun and is not done, or was interrupted
"""

from __future__ import annotations


class StoreError(Exception):
    """Root of the room's errors."""


class SpecError(StoreError):
    """The declaration can't be used; the message names the field and the remedy."""


class SpecConflict(SpecError):
    """The stored declaration differs; the message holds both values."""


class UnknownTable(StoreError):
    """No table of that name was created in this store."""


class BadRequest(StoreError):
    """The call's columns don't fit the table. Nothing was applied."""


class GenerationError(StoreError):
    """The call's generation is not the shard's. The shards that refuse it applied nothing."""


class SeekConflict(StoreError):
    """The stored offset is not the expected one. Nothing was changed."""


class CallOutOfTurn(StoreError):
    """The number of a training client's call is not the next one. Nothing was changed."""


class SnapshotError(StoreError):
    """The snapshot can't be made, or can't be restored here; the message says why. Nothing was changed."""


class MirrorFileRefused(StoreError):
    """The message says which file and why; what it would have held is read from the store."""


class StoreMisconfigured(StoreError):
    """The server's configuration would break a guarantee."""


class StoreUnavailable(StoreError):
    """The server can't be reached, or refuses for now. What an interrupted `apply` did is unknown: read the offsets."""


class StoreFull(StoreUnavailable):
    """The server is out of memory. The shards that refused applied nothing."""


class StoreBeingRestored(StoreUnavailable):
    """Its shards may be of two times: nobody learns until a restore has gone through. The message has the remedy."""
