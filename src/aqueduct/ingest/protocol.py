"""The messages between producers, readers and an ingest server, which pass channels in channels.

A producer sends `Open` on the entrypoint, with the receiver of its records and the sender of the
answers. A reader sends `Fetch` with the sender of the rows; flow control of that channel is the
back pressure.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

import msgspec

from aqueduct.api.handles import Receiver, Sender
from aqueduct.ingest.dedup.scope import Fingerprint, WriteScope
from aqueduct.ingest.identity import MAX_OFFSETS, MAX_POSITIONS, History, TopicPosition

AUTHORIZATION = "authorization"
"""The connection header with a client's token."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The names of topics, owners and named readers, which any storage can use."""

FIRST_TIME = -62_135_596_800_000_000
LAST_TIME = 253_402_300_799_999_999
"""The range of timestamps, in microseconds since 1970: the years 1 to 9999."""

MAX_RECORDS = 16_384
MAX_HEADERS = 64
MAX_MESSAGE_HEADERS = 16_384
"""Records of one message, headers of one record, and headers of one message. Each costs memory, and
decoding a message blocks the event loop."""

MAX_SEQUENCE = 2**62
"""The largest sequence number of a message: those of all its records fit signed 64-bit integers."""


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Open`: the producer may send records."""

    partitions: int
    committed: int
    """The last sequence number stored under the producer's id; 0 for none."""
    max_record: int
    is_done: bool = False
    """Whether nothing is to be sent: the part is complete, or the step has ended."""
    topic_id: str = ""
    epoch: str = ""
    """The current epoch of the topic, for all answers on this channel (`identity`)."""


class Committed(msgspec.Struct, tag=True, frozen=True):
    """Acknowledges records: they are durable."""

    sequence: int
    """The sequence number of the first record."""
    count: int
    offsets: dict[int, int]
    """By partition, the offset of the first new record; the others follow without a gap. Empty if
    all records are duplicates."""
    skipped: int = 0
    """The number of duplicates: the first records of the message, or with row ids any of them."""


class Refusal(msgspec.Struct, tag=True, frozen=True):
    """Rejects a request, or everything that a producer sent after the last `Committed`."""

    code: str
    """The `IngestError.code` of the error."""
    reason: str
    """What is wrong, and the remedy."""


Answer: TypeAlias = Opened | Committed | Refusal


class Open(msgspec.Struct, tag=True):
    """Open a topic for a producer."""

    topic: str
    producer_id: str
    records: Receiver[bytes]
    """Carries `RecordColumns`, undecoded: the server computes their memory cost first."""
    answers: Sender[Answer]
    partitions: int | None = None
    """Partitions of the topic if it is new; None for the server's setting."""
    instance: str = ""
    """A random id of this producer, among all that have used the same ``producer_id``."""
    resume_after: int | None = msgspec.field(default=None, name="again")
    """For a producer that reconnects, the last sequence number that it knows to be stored. The
    server rejects it if another producer has taken its id, or if its job is unknown."""
    scope: WriteScope | None = msgspec.field(default=None, name="once")
    """The part of a job that it writes. Then the server deduplicates by row id, derives the
    producer id from the scope, and ignores sequence numbers and instances."""
    position: TopicPosition | None = None
    """The acknowledged position; the server rejects the request if the topic does not match it."""
    after: int | None = None
    """With ``scope``, for a job that ends all its steps in this topic, also those without rows: a
    step that must have ended. The server rejects the request if the topic does not know it.
    Negative: the job has not ended its first step."""


class PartitionInfo(msgspec.Struct, frozen=True):
    """The offsets, times and size of a partition."""

    partition: int
    first_offset: int
    next_offset: int
    first_time: int | None = None
    """When the first record was stored, in microseconds since 1970; None without records."""
    last_time: int | None = None
    size: int = 0
    """Bytes on disk."""
    fault: str = ""
    """Why the partition is out of use; empty if it is in use."""


class StepInfo(msgspec.Struct, frozen=True):
    """An unfinished step of a job: retention keeps its rows."""

    job: str
    step: int
    runs: int
    """The number of runs that have written it."""
    began: int
    """In microseconds since 1970."""
    last_used: int
    """When a run last began or continued it, as far as the server knows."""
    offsets: dict[int, int]
    """By partition, the offset from which retention keeps rows."""
    kept_until: int | None = None
    """When retention may remove them, if no run continues the step; None if unknown."""


class TopicInfo(msgspec.Struct, frozen=True):
    """The partitions, readers, identity and unfinished steps of a topic."""

    topic: str
    partitions: list[PartitionInfo]
    readers: dict[str, dict[int, int]] = {}
    """By name, the committed offsets of each named reader, by partition."""
    fault: str = ""
    """Why the topic cannot be opened, if so; then ``partitions`` is empty."""
    id: str = ""
    """The id created with the topic: a recreated topic of the same name has another id."""
    epoch: str = ""
    """The newest epoch of its history (`identity.History`); `Epochs` requests all of it."""
    stale_readers: dict[str, str] = {}
    """Named readers whose position does not match the topic, and why."""
    steps: list[StepInfo] = []
    """Unfinished steps of jobs, at most 100: first those that keep rows, then the others,
    each sorted by idle time."""
    unfinished_steps: int = 0
    """The number of all unfinished steps."""


class Listing(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Topics`."""

    topics: list[TopicInfo]


class Epochs(msgspec.Struct, tag=True):
    """Request the history of a topic."""

    topic: str
    reply: Sender[History | Refusal]


class Found(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Offsets`: an offset for each partition."""

    offsets: dict[int, int]


class Done(msgspec.Struct, tag=True, frozen=True):
    """Acknowledges a request that has no other answer."""


class Topics(msgspec.Struct, tag=True):
    """Request one topic, or all topics that the reader may read."""

    reply: Sender[Listing | Refusal]
    topic: str | None = None


class Offsets(msgspec.Struct, tag=True):
    """Request the first offset of each partition stored at or after a time."""

    topic: str
    timestamp: int
    reply: Sender[Found | Refusal]


class Fetch(msgspec.Struct, tag=True):
    """Request the rows from ``start`` up to, and not including, ``end``."""

    topic: str
    partition: int
    start: int
    end: int
    rows: Sender[bytes]
    """Carries Arrow IPC messages: record batches with the schema `records.STORED`. The server
    finishes the channel after the last one, and cancels it on failure."""
    reply: Sender[Done | Refusal]
    """Carries `Done` after all rows were sent, or the reason of the failure."""
    position: TopicPosition | None = None
    """The position that the topic must match before the server sends rows."""


class Advance(msgspec.Struct, tag=True):
    """Commit the offsets of a named reader: retention keeps the rows from there on."""

    topic: str
    reader: str
    offsets: Annotated[dict[int, int], msgspec.Meta(max_length=MAX_OFFSETS)]
    reply: Sender[Done | Refusal]
    position: TopicPosition | None = None
    """The position that the topic must match before the server records the offsets."""


class EndStep(msgspec.Struct, tag=True):
    """End a step of a job: later attempts of its parts need not send rows."""

    topic: str
    job: str
    step: int
    run: str
    reply: Sender[Done | Refusal]
    positions: Annotated[list[TopicPosition], msgspec.Meta(max_length=MAX_POSITIONS)] = []
    """The acknowledged positions of the step's parts; the topic must match them."""
    rows: Fingerprint | None = None
    """The fingerprint over all parts; on a mismatch the server answers with code ``conflict``."""
    allow_extra: bool = False
    """Whether the step may have rows of earlier runs that this run lacks."""


Request: TypeAlias = Open | Topics | Epochs | Offsets | Fetch | Advance | EndStep
