"""What producers, readers and an ingest server say to each other: a use of channels in channels.

A producer sends `Open` on the entrypoint. It carries the receiver of its records and the sender of
the answers; both are channels of their own from then on. A reader sends `Fetch` with the sender of
the rows that it wants, and flow control of that channel does the pacing.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from aqueduct.api.handles import Receiver, Sender
from aqueduct.ingest.dedup.scope import Fingerprint, WriteScope
from aqueduct.ingest.identity import MAX_OFFSETS, MAX_POSITIONS, History, TopicPosition

FIRST_TIME = -62_135_596_800_000_000
LAST_TIME = 253_402_300_799_999_999
"""Microseconds since 1970 of the first and the last moment that has a date: years 1 to 9999."""


MAX_RECORDS = 16_384
MAX_HEADERS = 64
MAX_MESSAGE_HEADERS = 16_384
"""Records of one message, headers of one record, and headers of one message: each costs time and
memory, however small, and the event loop is blocked while a message is decoded."""

MAX_SEQUENCE = 2**62
"""The greatest sequence number: it is stored as a signed 64-bit integer, and this leaves room for
the other records of the same message."""


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Open`: records may come."""

    partitions: int
    committed: int
    """The last sequence number that is stored under this producer's id; 0 for none."""
    max_record: int
    is_done: bool = False
    """Whether nothing is to be sent: the part is complete, or the step is over."""
    topic_id: str = ""
    epoch: str = ""
    """The current epoch of the topic, for all answers on this channel; see `identity`."""


class Committed(msgspec.Struct, tag=True, frozen=True):
    """Records are stored, and will be there after any crash."""

    sequence: int
    """Of the first record."""
    count: int
    offsets: dict[int, int]
    """By partition, the offset of the first new one that is there; the others follow without a gap.
    Empty if they had all been stored before."""
    skipped: int = 0
    """How many of them, from the first on, had been stored before; with ids, those
    may be any of them."""


class Refusal(msgspec.Struct, tag=True, frozen=True):
    """Nothing more will be stored for this producer; what was answered with `Committed` is."""

    code: str
    """For programs: what kind of refusal."""
    reason: str
    """For people: what is wrong, and what to do."""


Answer: TypeAlias = Opened | Committed | Refusal


class Open(msgspec.Struct, tag=True):
    """A producer begins."""

    topic: str
    producer_id: str
    records: Receiver[bytes]
    """Carries `RecordColumns`, undecoded: the server computes their memory cost first."""
    answers: Sender[Answer]
    partitions: int | None = None
    """How many partitions the topic gets if it is new; None for what the server likes."""
    instance: str = ""
    """Which of the producers that have, or had, this id: each makes one up when it begins."""
    again: int | None = None
    """The last number that it knows to be stored, if it was open before and lost its connection;
    then it is refused if another one was opened meanwhile, or if its job is not known."""
    scope: WriteScope | None = msgspec.field(default=None, name="once")
    """Whose rows these are, if they are told apart by ids; then the id of the producer follows from
    it, and numbers, instances and other producers with that id do not matter."""
    position: TopicPosition | None = None
    """The acknowledged position; the server rejects the request if the topic does not match it."""
    after: int | None = None
    """With ``scope``: a step that the job must have ended in this topic, because it ends all of its
    steps here, also those without rows; the server rejects the request if the topic does not know
    it. Negative: the job has not ended its first step."""


class PartitionInfo(msgspec.Struct, frozen=True):
    """What a partition holds."""

    partition: int
    first_offset: int
    next_offset: int
    first_time: int | None = None
    """When the first record was stored, in microseconds since 1970; None if there is none."""
    last_time: int | None = None
    size: int = 0
    """Bytes on disk."""
    fault: str = ""
    """Why it cannot be written or read, if so."""


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
    """What a topic holds."""

    topic: str
    partitions: list[PartitionInfo]
    readers: dict[str, dict[int, int]] = {}
    """By name, how far each named reader has come in each partition."""
    fault: str = ""
    """Why nothing is known of it, if so; then there are no partitions here."""
    id: str = ""
    """The id created with the topic: a recreated topic of the same name has another id."""
    epoch: str = ""
    """The newest epoch of its history (`identity.History`); `Epochs` requests all of it."""
    stale_readers: dict[str, str] = {}
    """Named readers whose position does not match the topic, and why."""
    steps: list[StepInfo] = []
    """Steps of jobs that are not over, at most 100: first those that keep rows, and of these and of
    the others those that were idle for longest."""
    unfinished_steps: int = 0
    """The number of all unfinished steps."""


class Listing(msgspec.Struct, tag=True, frozen=True):
    """What there is."""

    topics: list[TopicInfo]


class Epochs(msgspec.Struct, tag=True):
    """Request the history of a topic."""

    topic: str
    reply: Sender[History | Refusal]


class Found(msgspec.Struct, tag=True, frozen=True):
    """An offset for each partition."""

    offsets: dict[int, int]


class Done(msgspec.Struct, tag=True, frozen=True):
    """It was done as asked."""


class Topics(msgspec.Struct, tag=True):
    """A reader asks what there is: all topics that it may read, or one."""

    reply: Sender[Listing | Refusal]
    topic: str | None = None


class Offsets(msgspec.Struct, tag=True):
    """A reader asks for the first offset of each partition at or after a time."""

    topic: str
    timestamp: int
    reply: Sender[Found | Refusal]


class Fetch(msgspec.Struct, tag=True):
    """A reader asks for the rows from one offset up to, and not including, another."""

    topic: str
    partition: int
    start: int
    end: int
    rows: Sender[bytes]
    """Gets Arrow IPC messages: record batches of the schema in `rows.STORED`, each with the offset
    of its first row; finished after the last, cancelled if something is wrong."""
    reply: Sender[Done | Refusal]
    """Gets `Done` when all rows were sent, or what is wrong."""
    position: TopicPosition | None = None
    """The position that the topic must match before the server sends rows."""


class Advance(msgspec.Struct, tag=True):
    """A named reader has come so far: nothing from there on may be removed for its age."""

    topic: str
    reader: str
    offsets: Annotated[dict[int, int], msgspec.Meta(max_length=MAX_OFFSETS)]
    reply: Sender[Done | Refusal]
    position: TopicPosition | None = None
    """The position that the topic must match before the server records the offsets."""


class EndStep(msgspec.Struct, tag=True):
    """A step of a job is over: whoever has rows of it need not send them."""

    topic: str
    job: str
    step: int
    run: str
    reply: Sender[Done | Refusal]
    positions: Annotated[list[TopicPosition], msgspec.Meta(max_length=MAX_POSITIONS)] = []
    """What the topic must have, since the parts of the step know it to be stored."""
    rows: Fingerprint | None = None
    """The fingerprint over all parts; on a mismatch the server answers with code ``conflict``."""
    allow_extra: bool = False
    """Whether the step may have rows of earlier runs that this run lacks."""


Request: TypeAlias = Open | Topics | Epochs | Offsets | Fetch | Advance | EndStep
