"""Reading a range to its end: over lost connections, and never past a row that is not there."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from aqueduct.errors import AqueductError, ConnectError
from aqueduct.ingest.errors import CorruptFile, IngestError, TopicReplaced, UnknownTopic
from aqueduct.ingest.identity import TopicPosition
from aqueduct.spark.backend import Place, unreachable
from aqueduct.spark.errors import DataLoss, SourceError, TopicIdentityError
from aqueduct.spark.source.plan import OffsetRange

_log = logging.getLogger("aqueduct.spark")

PAUSES = (0.2, 1.0, 3.0)
"""Seconds before a server is asked again that did not answer: it may be starting anew."""
_PATIENCE = 10.0
"""Seconds after which there are no more pauses: what is so slow to fail is not just starting."""


def pauses() -> Iterator[float]:
    """`PAUSES`, as long as there is any use in waiting."""
    end = time.monotonic() + _PATIENCE
    return (pause for pause in PAUSES if time.monotonic() < end)


def fetch(
    place: Place,
    wanted: OffsetRange,
    fail_on_data_loss: bool,
    position: TopicPosition | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range in order. What fails twice at the same row is an error.

    Without ``fail_on_data_loss`` rows that are gone are left out, with a warning that tells which.
    Raises `TopicIdentityError` in any case if the topic lacks the rows before ``position``.
    """
    at, end = wanted.start, wanted.end
    left = pauses()
    while at < end:
        before = at
        try:
            for batch in place.read(wanted.topic, wanted.partition, at, end, position):
                at = _behind(batch, at, wanted)
                yield batch
        except SourceError:
            raise
        except TopicReplaced as error:
            raise TopicIdentityError(f"{wanted} on {place}: {error}") from error
        except UnknownTopic as error:
            at, end = _what_is_left(place, wanted, at, end, fail_on_data_loss, error, left)
        except IngestError as error:
            # A server gives up a reader that was slow; whoever has come further may ask again.
            if at == before:
                raise _failed(place, wanted, at, error) from error
        except AqueductError as error:
            place.forget()
            left = left if at == before else pauses()
            pause = next(left, None)
            if pause is None:
                if isinstance(error, ConnectError):
                    raise unreachable(place, error) from error
                raise _failed(place, wanted, at, error) from error
            time.sleep(pause)
        else:
            if at < end:
                raise DataLoss(f"{wanted} on {place}: nothing came from offset {at} on")


def _behind(batch: pa.RecordBatch, at: int, wanted: OffsetRange) -> int:
    """The offset behind a batch, whose rows have to be the next ones."""
    count = int(batch.num_rows)
    if count:
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[count - 1].as_py()
        if first != at or last != at + count - 1 or last >= wanted.end:
            raise DataLoss(
                f"{wanted}: {count} rows came from offset {first} to {last} where {at} is next; "
                "rows are missing or are there twice"
            )
    return at + count


def _failed(place: Place, wanted: OffsetRange, at: int, error: AqueductError) -> SourceError:
    advice = (
        "; docs/ingest.md says what to do when something is damaged"
        if isinstance(error, CorruptFile) or ", byte " in str(error)
        else ""
    )
    return SourceError(f"{wanted} on {place} failed at offset {at}: {error}{advice}")


def _what_is_left(
    place: Place,
    wanted: OffsetRange,
    at: int,
    end: int,
    fail_on_data_loss: bool,
    error: UnknownTopic,
    waiting: Iterator[float],
) -> tuple[int, int]:
    """What to read of a range that is not all there; raises unless less may be read."""
    first, stop = _held(place, wanted)
    if first <= at and place.path is not None:
        # The files of a server that has just started do not show its last group for a moment.
        pause = next(waiting, None)
        if pause is not None:
            time.sleep(pause)
            return at, end
    if fail_on_data_loss or (first <= at and end <= stop):
        raise lost(wanted, at, str(error)) from error
    left = skip(wanted, at, first) if first > at else at
    right = min(end, max(stop, left))
    if right < end:
        skip(wanted, right, end)
    return left, right


def _held(place: Place, wanted: OffsetRange) -> tuple[int, int]:
    """The first offset that a partition has, and the one behind its last."""
    try:
        for info in place.topics(wanted.topic):
            for part in info.partitions:
                if part.partition == wanted.partition:
                    return part.first_offset, part.next_offset
    except UnknownTopic:
        pass
    return wanted.end, wanted.end


def lost(wanted: OffsetRange, at: int, why: str) -> DataLoss:
    """That rows are gone, and what to do."""
    return DataLoss(
        f"{wanted.topic} partition {wanted.partition}: offsets {at} up to {wanted.end} should be "
        f"read, and are not all there: {why}. Retention was faster than this reader, or the "
        "data was replaced; to go on with what is there, set option failOnDataLoss to false"
    )


def skip(wanted: OffsetRange, at: int, to: int) -> int:
    """Go on further behind, and say so."""
    to = min(max(at, to), wanted.end)
    _log.warning(
        "%s partition %d: offsets %d up to %d are not there and are left out (failOnDataLoss)",
        wanted.topic,
        wanted.partition,
        at,
        to,
    )
    return to
