"""The options of the Spark source: which there are, what they mean, and which go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from aqueduct.spark.faults import SourceError, WrongOption
from aqueduct.spark.offsets import EARLIEST, LATEST, TopicPartition, parse

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
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "includeHeaders",
    "trustCa",
    "trustPin",
    "trustDevelopment",
    "token",
)
"""Every option, as it is written; Spark does not tell capital letters from small ones."""

_STREAMING = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
_BATCH = ("endingOffsets",)
_SERVERS = ("trustCa", "trustPin", "trustDevelopment", "token")
_TRUST = ("trustCa", "trustPin", "trustDevelopment")
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:,/]+):([0-9]{1,5})")


@dataclass(frozen=True)
class Position:
    """Where to begin or to end: ``EARLIEST``, ``LATEST``, or an offset for each partition."""

    everywhere: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadOptions:
    """What to read, from where, and how much at a time."""

    path: str | None
    servers: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None
    start: Position
    end: Position
    start_time: float | None
    """Seconds since 1970."""
    fail_on_data_loss: bool
    max_rows: int | None
    max_bytes: int | None
    min_partitions: int
    include_headers: bool
    trust_ca: str | None
    trust_pin: str | None
    trust_development: bool
    token: str | None = field(repr=False)


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """The options that somebody gave; raises `WrongOption` for the first that cannot be.

    ``streaming`` is None as long as it is not known; what depends on it is then not checked.
    """
    options = _Given(given)
    options.check_names()
    options.one_of("path", "servers", "where to read from")
    options.one_of("subscribe", "subscribePattern", "what to read")
    options.exclude(_TRUST)
    options.exclude(("startingOffsets", "startingTimestamp"))
    if options.text("path") is not None:
        options.refuse(_SERVERS, "goes with servers; a path is read as a directory")
    if streaming is not None:
        unfit, why = (_BATCH, "a batch") if streaming else (_STREAMING, "a stream")
        options.refuse(unfit, f"is for {why} only")
    start = options.position("startingOffsets", LATEST if streaming else EARLIEST)
    end = options.position("endingOffsets", LATEST)
    _check_ends(start, end, streaming)
    time = options.number("startingTimestamp", 0)
    return ReadOptions(
        path=options.text("path"),
        servers=options.servers(),
        topics=options.topics(),
        pattern=options.pattern(),
        start=start,
        end=end,
        start_time=None if time is None else time / 1_000,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        max_rows=options.number("maxOffsetsPerTrigger", 1),
        max_bytes=options.number("maxBytesPerTrigger", 1),
        min_partitions=options.number("minPartitions", 1, MAX_PARTITIONS) or 1,
        include_headers=options.flag("includeHeaders", False),
        trust_ca=options.text("trustCa"),
        trust_pin=options.text("trustPin"),
        trust_development=options.flag("trustDevelopment", False),
        token=options.text("token"),
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


class _Given:
    """Options as text, found by name however it is written."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def check_names(self) -> None:
        known = {name.lower() for name in NAMES}
        for name in sorted(self._given):
            if name not in known:
                raise WrongOption(f"there is no option {name!r}; options: {', '.join(NAMES)}")

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise WrongOption(f"option {name} is empty; give a value, or leave it out")
        return value

    def one_of(self, one: str, other: str, what: str) -> None:
        given = [name for name in (one, other) if self.text(name) is not None]
        if len(given) != 1:
            count = "both are given" if given else "none is given"
            raise WrongOption(f"options {one} and {other} say {what}: {count}, and one is needed")

    def exclude(self, names: tuple[str, ...]) -> None:
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise WrongOption(f"options {' and '.join(given)} exclude each other; give one of them")

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if self.text(name) is not None:
                raise WrongOption(f"option {name} {why}")

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise WrongOption(f"option {name} is true or false, not {value!r}")
        return value.strip().lower() == "true"

    def number(self, name: str, least: int, most: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        digits = value.strip()
        if not digits.isascii() or not digits.isdecimal() or not least <= int(digits) <= most:
            upper = "" if most == 2**63 - 1 else f" to {most}"
            raise WrongOption(f"option {name} is a whole number from {least}{upper}, not {value!r}")
        return int(digits)

    def position(self, name: str, default: int) -> Position:
        value = self.text(name)
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

    def servers(self) -> tuple[str, ...]:
        servers = self._listed("servers")
        for server in servers:
            found = _SERVER.fullmatch(server)
            if not found or not 1 <= int(found[2]) <= 65_535:
                raise WrongOption(f"option servers: {server!r} is not host:port")
        return servers

    def topics(self) -> tuple[str, ...]:
        topics = self._listed("subscribe")
        for topic in topics:
            if not _TOPIC.fullmatch(topic):
                raise WrongOption(f"option subscribe: {topic!r} cannot be the name of a topic")
        return topics

    def pattern(self) -> str | None:
        pattern = self.text("subscribePattern")
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise WrongOption(
                    f"option subscribePattern: {pattern!r} is not a regular expression: {error}"
                ) from None
        return pattern

    def _listed(self, name: str) -> tuple[str, ...]:
        value = self.text(name)
        if value is None:
            return ()
        entries = tuple(entry.strip() for entry in value.split(","))
        if "" in entries or len(set(entries)) != len(entries):
            raise WrongOption(f"option {name}: {value!r} has an empty or a repeated entry")
        return entries
