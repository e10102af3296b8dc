"""The options of the Spark source: which there are, what they mean, and which go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from aqueduct.spark.errors import SourceError, WrongOption
from aqueduct.spark.option_values import (
    ERROR,
    REPLACED,
    RESTART,
    SERVER_NAMES,
    Given,
    ServerOptions,
)
from aqueduct.spark.source.offsets import EARLIEST, LATEST, TopicPartition, parse

MAX_PARTITIONS = 100_000
"""More tasks than that in one batch cost Spark more than they read."""

NAMES = (
    "path",
    "servers",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "failOnDataLoss",
    "onTopicReplaced",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "includeHeaders",
    *SERVER_NAMES,
)
"""Every option, as it is written; Spark does not tell capital letters from small ones."""

_STREAMING = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "onTopicReplaced")
_BATCH = ("endingOffsets",)


@dataclass(frozen=True)
class Position:
    """Where to begin or to end: ``EARLIEST``, ``LATEST``, or an offset for each partition."""

    everywhere: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadOptions(ServerOptions):
    """What to read, from where, and how much at a time."""

    path: str | None
    topics: tuple[str, ...]
    pattern: str | None
    start: Position
    end: Position
    start_time: float | None
    """Seconds since 1970."""
    fail_on_data_loss: bool
    on_topic_replaced: str
    """The action for a topic that was replaced: one of `given.REPLACED`."""
    max_rows: int | None
    max_bytes: int | None
    min_partitions: int
    include_headers: bool


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """The options that somebody gave; raises `WrongOption` for the first that cannot be.

    ``streaming`` is None as long as it is not known; what depends on it is then not checked.
    """
    options = Given(given)
    options.check_names(NAMES)
    options.one_of("path", "servers", "where to read from")
    options.one_of("subscribe", "subscribePattern", "what to read")
    options.exclude(("startingOffsets", "startingTimestamp"))
    if options.text("path") is not None:
        options.refuse(SERVER_NAMES, "goes with servers; a path is read as a directory")
    if streaming is not None:
        unfit, why = (_BATCH, "a batch") if streaming else (_STREAMING, "a stream")
        options.refuse(unfit, f"is for {why} only")
    start = _position(options, "startingOffsets", LATEST if streaming else EARLIEST)
    end = _position(options, "endingOffsets", LATEST)
    _check_ends(start, end, streaming)
    fail_on_data_loss = options.flag("failOnDataLoss", True)
    time = options.number("startingTimestamp", 0, what="milliseconds since 1970, ")
    return ReadOptions(
        **asdict(options.server_options()),
        path=options.text("path"),
        topics=options.topics("subscribe"),
        pattern=_pattern(options),
        start=start,
        end=end,
        start_time=None if time is None else time / 1_000,
        fail_on_data_loss=fail_on_data_loss,
        on_topic_replaced=options.choice(
            "onTopicReplaced", REPLACED, ERROR if fail_on_data_loss else RESTART
        ),
        max_rows=options.number("maxOffsetsPerTrigger", 1),
        max_bytes=options.number("maxBytesPerTrigger", 1),
        min_partitions=options.number("minPartitions", 1, MAX_PARTITIONS) or 1,
        include_headers=options.flag("includeHeaders", False),
    )


def _check_ends(start: Position, end: Position, streaming: bool | None) -> None:
    if end.everywhere == EARLIEST or EARLIEST in end.offsets.values():
        raise WrongOption("option endingOffsets: nothing ends at the earliest offset")
    if streaming is False and (start.everywhere == LATEST or LATEST in start.offsets.values()):
        raise WrongOption(
            "option startingOffsets: a batch that begins at the latest offset has no rows; give "
            "earliest, or an offset for each partition"
        )
    for where, first in start.offsets.items():
        last = end.offsets.get(where, first)
        if first > last >= 0:
            raise WrongOption(
                f"options startingOffsets and endingOffsets: {where} begins at {first}, "
                f"behind its end at {last}"
            )


def _position(options: Given, name: str, default: int) -> Position:
    value = options.text(name)
    if value is None:
        return Position(default)
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return Position(EARLIEST if word == "earliest" else LATEST)
    if not word.startswith("{"):
        raise WrongOption(
            f"option {name} is earliest, latest, or an offset for each partition as "
            f'{{"topic": {{"0": 12}}}}, not {value!r}'
        )
    try:
        offsets = parse(value)
    except SourceError as error:
        raise WrongOption(f"option {name}: {error}") from None
    if not offsets:
        raise WrongOption(f"option {name} names no partition")
    return Position(offsets=offsets)


def _pattern(options: Given) -> str | None:
    pattern = options.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise WrongOption(
                f"option subscribePattern: {pattern!r} is not a regular expression: {error}"
            ) from None
    return pattern
