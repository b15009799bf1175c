"""What kafka-python makes of a fetched batch of records: columns, where it would make an object for each record."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from kafka import errors
from kafka.consumer.fetcher import Fetcher

from ingest.fetched import Fetched
from native.kafka_records import parse_records

_LOG_APPEND_TIME = 1


class PartitionBatches(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python has no types
    """Stands in for the fetcher's `PartitionRecords`: `take` gives `Fetched`, a batch each.

    Transactions, markers and positions are handled as by kafka-python 3.0.12, whose loop over batches this is; what is
    another is what is done with a batch's records. The position behind a batch is that of its last offset, whether or
    not a record has it.
    """

    def take(self, n: int | None = None) -> list[Fetched]:
        """Batches with about n records together, one at least if there is any; an error comes after what it follows.

        With an error this is spent, and the position is fetched anew: kafka-python 3.0.12 would ask for ever.
        """
        error: Exception | None = self._next_inline_exception  # type: ignore[has-type]  # kafka-python has none
        if error is not None:
            self.drain()
            raise error
        taken: list[Fetched] = []
        records = 0
        try:
            for batch in self.record_iterator or ():
                taken.append(batch)
                records += len(batch)
                if n is not None and records >= n:
                    break
        except Exception as damage:
            if not taken:
                self.drain()
                raise
            self._next_inline_exception = damage
        return taken

    def _maybe_skip_record(self, record: Any) -> bool:  # noqa: ARG002
        return False  # those before the position are left out of their batch

    def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[Fetched]:
        last = None
        while (batch := records.next_batch()) is not None:
            last = batch
            if self.check_crcs and not batch.validate_crc():
                raise errors.CorruptRecordError(
                    f"the batch at offset {batch.base_offset} of {tp} does not have its checksum"
                )
            if batch.magic == 2:
                self.leader_epoch = batch.leader_epoch
                if self._is_left_out(batch):
                    self.next_fetch_offset = batch.next_offset
                    continue
                found = _columns(batch, tp)
            else:
                found = _of_old_format(batch, tp, check=self.check_crcs)
            known = int(np.searchsorted(found.offset, self.fetch_offset))
            found = found.part(known, len(found))
            if not len(found):
                continue
            self.records_read += len(found)
            self.next_fetch_offset = batch.next_offset if batch.magic == 2 else int(found.offset[-1]) + 1
            yield found
        if last is not None and last.magic == 2:
            self.next_fetch_offset = last.next_offset
        self.drain()

    def _is_left_out(self, batch: Any) -> bool:
        """Whether it is a marker, or of a transaction that was aborted."""
        if self.isolation_level and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)


def _columns(batch: Any, tp: Any) -> Fetched:
    batch._maybe_uncompress()
    data = np.frombuffer(batch._buffer, np.uint8)
    n = batch.records_count
    columns = [np.empty(n, np.int64) for _ in range(6)]
    offset, time_ms, key_at, key_size, value_at, value_size = columns
    whole = parse_records(
        data, batch._pos, batch.base_offset, batch.first_timestamp, offset, time_ms, (key_at, key_size),
        (value_at, value_size),
    )  # fmt: skip
    if whole < n:
        raise errors.CorruptRecordError(f"record {whole} of {n} in the batch at offset {batch.base_offset} of {tp}")
    if batch.timestamp_type == _LOG_APPEND_TIME:
        time_ms[:] = batch.max_timestamp
    return Fetched(data, *columns)


def _of_old_format(batch: Any, tp: Any, *, check: bool) -> Fetched:
    """Of message formats 0 and 1, which have checksums of their own."""
    records, checked = itertools.tee(batch)
    if check and not all(record.validate_crc() for record in checked):
        raise errors.CorruptRecordError(f"a record in the batch at offset {batch.base_offset} of {tp}")
    rows = [(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value) for r in records]
    return Fetched.of(rows)
