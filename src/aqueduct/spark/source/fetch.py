"""Read an offset range completely: retry lost connections, and detect missing rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from aqueduct.errors import AqueductError, ConnectError
from aqueduct.ingest.errors import CorruptFile, IngestError, TopicReplaced, UnknownTopic
from aqueduct.ingest.identity import TopicPosition
from aqueduct.spark.backend import Backend, unreachable_error
from aqueduct.spark.errors import DataLoss, SourceError, TopicIdentityError
from aqueduct.spark.source.plan import OffsetRange

_log = logging.getLogger("aqueduct.spark")

RETRY_DELAYS = (0.2, 1.0, 3.0)
"""Seconds before each retry of a server that does not answer: it may be restarting."""
_RETRY_TIMEOUT = 10.0
"""Seconds after which there are no more retries: a restarting server fails faster."""


def retry_delays() -> Iterator[float]:
    """Yield `RETRY_DELAYS` until the retry timeout has passed."""
    end = time.monotonic() + _RETRY_TIMEOUT
    return (delay for delay in RETRY_DELAYS if time.monotonic() < end)


def fetch(
    backend: Backend,
    wanted: OffsetRange,
    fail_on_data_loss: bool,
    position: TopicPosition | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in order; retry until no retry makes progress.

    Without ``fail_on_data_loss``, missing rows are skipped with a warning that has their offsets.
    Raises `TopicIdentityError` in any case if the topic lacks the rows before ``position``.
    """
    at, end = wanted.start, wanted.end
    delays = retry_delays()
    while at < end:
        before = at
        try:
            for batch in backend.read(wanted.topic, wanted.partition, at, end, position):
                at = _next_offset(batch, at, wanted)
                yield batch
        except SourceError:
            raise
        except TopicReplaced as error:
            raise TopicIdentityError(f"{wanted} on {backend}: {error}") from error
        except UnknownTopic as error:
            at, end = _remaining(backend, wanted, at, end, fail_on_data_loss, error, delays)
        except IngestError as error:
            # A server disconnects slow readers; retry if this attempt made progress.
            if at == before:
                raise _read_error(backend, wanted, at, error) from error
        except AqueductError as error:
            backend.disconnect()
            delays = delays if at == before else retry_delays()
            delay = next(delays, None)
            if delay is None:
                if isinstance(error, ConnectError):
                    raise unreachable_error(backend, error) from error
                raise _read_error(backend, wanted, at, error) from error
            time.sleep(delay)
        else:
            if at < end:
                raise DataLoss(f"{wanted} on {backend}: no rows from offset {at}")


def _next_offset(batch: pa.RecordBatch, at: int, wanted: OffsetRange) -> int:
    """Return the offset after a batch; raise `DataLoss` unless the batch continues at ``at``."""
    count = int(batch.num_rows)
    if count:
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[count - 1].as_py()
        if first != at or last != at + count - 1 or last >= wanted.end:
            raise DataLoss(
                f"{wanted}: received {count} rows from offset {first} to {last} where {at} is "
                "next; rows are missing or duplicated"
            )
    return at + count


def _read_error(
    backend: Backend, wanted: OffsetRange, at: int, error: AqueductError
) -> SourceError:
    hint = (
        "; docs/ingest.md says how to repair damaged files"
        if isinstance(error, CorruptFile) or ", byte " in str(error)
        else ""
    )
    return SourceError(f"{wanted} on {backend} failed at offset {at}: {error}{hint}")


def _remaining(
    backend: Backend,
    wanted: OffsetRange,
    at: int,
    end: int,
    fail_on_data_loss: bool,
    error: UnknownTopic,
    delays: Iterator[float],
) -> tuple[int, int]:
    """Return the part of a range that exists; raise `DataLoss` unless rows may be skipped."""
    first, stop = _stored_range(backend, wanted)
    if first <= at and backend.path is not None:
        # The files of a server that has just started lack its last commit for a moment.
        delay = next(delays, None)
        if delay is not None:
            time.sleep(delay)
            return at, end
    if fail_on_data_loss or (first <= at and end <= stop):
        raise data_loss(wanted, at, str(error)) from error
    return skip_missing(wanted, at, end, first, stop)


def _stored_range(backend: Backend, wanted: OffsetRange) -> tuple[int, int]:
    """Return the first and the next offset of a partition."""
    try:
        for info in backend.topics(wanted.topic):
            for part in info.partitions:
                if part.partition == wanted.partition:
                    return part.first_offset, part.next_offset
    except UnknownTopic:
        pass
    return wanted.end, wanted.end


def data_loss(wanted: OffsetRange, at: int, why: str) -> DataLoss:
    """Return the error for missing rows, with remedies."""
    return DataLoss(
        f"{wanted.topic} partition {wanted.partition}: offsets {at} up to {wanted.end} should be "
        f"read, but some are missing: {why}. Retention removed them before they were read, or the "
        "data was replaced; to continue with the rows that exist, set option failOnDataLoss to "
        "false"
    )


def skip_missing(
    wanted: OffsetRange, start: int, end: int, first: int, stop: int
) -> tuple[int, int]:
    """Clip offsets to those stored, from ``first`` up to ``stop``; log what is skipped."""
    left = min(max(start, first), wanted.end)
    right = min(end, max(stop, left))
    if left > start:
        warn_skipped(OffsetRange(*wanted.topic_partition, start, left))
    if right < end:
        warn_skipped(OffsetRange(*wanted.topic_partition, right, end))
    return left, right


def warn_skipped(missing: OffsetRange) -> None:
    """Log that rows are skipped."""
    _log.warning(
        "%s partition %d: offsets %d up to %d are missing and are skipped (failOnDataLoss)",
        missing.topic, missing.partition, missing.start, missing.end,
    )  # fmt: skip
