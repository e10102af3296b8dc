"""All options of ``format("aqueduct")``, with their validation.

A new option of the source goes into `SOURCE_OPTIONS`, `SourceOptions` and `source_options`; a new
option of the sink into `SINK_OPTIONS`, `SinkOptions` and `sink_options`. An option about the
connection to servers goes into `SERVER_OPTIONS`, `ServerOptions` and `OptionValues.server_options`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches

from aqueduct.spark.errors import SourceError, WrongOption
from aqueduct.spark.source.offsets import EARLIEST, LATEST, TopicPartition, parse

SERVER_OPTIONS = ("trustCa", "trustPin", "trustDevelopment", "token")
"""Options about the connection to servers, shared by the source and the sink."""
SOURCE_OPTIONS = (
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
    *SERVER_OPTIONS,
)
"""The options of the source; Spark ignores the case of their names."""
SINK_OPTIONS = (
    "servers",
    "topic",
    "key",
    "value",
    "headers",
    "timestamp",
    "idColumn",
    "partitions",
    "writeId",
    "writeStep",
    "onTopicReplaced",
    "failOnExtraRows",
    *SERVER_OPTIONS,
)
"""The options of the sink; Spark ignores the case of their names."""
ERROR, RESTART, CONTINUE = TOPIC_REPLACED_ACTIONS = ("error", "restart", "continue")
"""Values of option onTopicReplaced: fail; read all rows that may be new; keep the offsets."""
RECORD_FIELDS = ("key", "value", "headers", "timestamp")
"""The fields of a record; each can be mapped to a column by an option of the same name."""
MAX_INPUT_PARTITIONS = 100_000
"""The largest minPartitions: more tasks per batch cost Spark more than they read."""
MAX_TOPIC_PARTITIONS = 1_000
"""The largest value of option partitions; protects against typing errors. Servers allow less."""

_TRUST_OPTIONS = SERVER_OPTIONS[:3]
_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "onTopicReplaced")
_BATCH_ONLY = ("endingOffsets",)
_SPARK_OPTIONS = ("checkpointLocation", "queryName")
"""Options of Spark itself, which Spark passes to the sink."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SERVER = re.compile(
    r"(?:aqueduct(?:\+quic|\+tcp)?://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:,/]+):([0-9]{1,5})"
)
_MAX_NUMBER = 2**63 - 1
_KAFKA_OPTIONS = {
    "kafka.bootstrap.servers": "servers",
    "kafka.group.id": "",
    "groupidprefix": "",
    "kafka.security.protocol": "trustCa",
    "kafka.ssl.truststore.location": "trustCa",
}
"""Options of Spark's Kafka connector, and their equivalent; empty if none is needed."""


@dataclass(frozen=True)
class ServerOptions:
    """The servers, the trust in their certificates, and the access token."""

    servers: tuple[str, ...]
    trust_ca: str | None
    trust_pin: str | None
    trust_development: bool
    token: str | None = field(repr=False)


@dataclass(frozen=True)
class Position:
    """Where to start or to end: ``EARLIEST``, ``LATEST``, or an offset per partition."""

    everywhere: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions(ServerOptions):
    """The validated options of the source."""

    path: str | None
    topics: tuple[str, ...]
    pattern: str | None
    start: Position
    end: Position
    start_time: float | None
    """Seconds since 1970."""
    fail_on_data_loss: bool
    on_topic_replaced: str
    """One of `TOPIC_REPLACED_ACTIONS`."""
    max_rows: int | None
    max_bytes: int | None
    min_partitions: int
    include_headers: bool


@dataclass(frozen=True)
class SinkOptions(ServerOptions):
    """The validated options of the sink."""

    topic: str | None
    """The topic of all rows; None if a column names it."""
    partitions: int | None
    """The number of partitions of a new topic."""
    columns: Mapping[str, str]
    """The column of each of `RECORD_FIELDS` that an option maps."""
    id_column: str | None
    write_id: str | None
    """The name of the write, under which a retry is deduplicated."""
    write_step: int
    """The number of the write among those with the same name; it increases."""
    on_topic_replaced: str
    """The action of a stream for a topic that was replaced: ``error`` or ``continue``."""
    fail_on_extra_rows: bool
    """Whether a batch fails if an earlier run of it stored rows that it no longer has."""


def source_options(
    option_values: Mapping[str, str], *, streaming: bool | None = None
) -> SourceOptions:
    """Validate the options of the source; raise `WrongOption` for the first invalid one.

    With ``streaming`` None, the options that only a batch or only a stream has are not checked.
    """
    values = OptionValues(option_values)
    values.check_names(SOURCE_OPTIONS)
    values.require_one("path", "servers", "where to read from")
    values.require_one("subscribe", "subscribePattern", "what to read")
    values.exclude(("startingOffsets", "startingTimestamp"))
    if values.text("path") is not None:
        values.reject(SERVER_OPTIONS, "goes with servers; a path is read as a directory")
    if streaming is not None:
        wrong, use = (_BATCH_ONLY, "a batch") if streaming else (_STREAM_ONLY, "a stream")
        values.reject(wrong, f"is for {use} only")
    start = _position(values, "startingOffsets", LATEST if streaming else EARLIEST)
    end = _position(values, "endingOffsets", LATEST)
    _check_positions(start, end, streaming)
    fail_on_data_loss = values.flag("failOnDataLoss", True)
    time = values.number("startingTimestamp", 0, unit="milliseconds since 1970, ")
    return SourceOptions(
        **asdict(values.server_options()),
        path=values.text("path"),
        topics=values.topics("subscribe"),
        pattern=_pattern(values),
        start=start,
        end=end,
        start_time=None if time is None else time / 1_000,
        fail_on_data_loss=fail_on_data_loss,
        on_topic_replaced=values.choice(
            "onTopicReplaced", TOPIC_REPLACED_ACTIONS, ERROR if fail_on_data_loss else RESTART
        ),
        max_rows=values.number("maxOffsetsPerTrigger", 1),
        max_bytes=values.number("maxBytesPerTrigger", 1),
        min_partitions=values.number("minPartitions", 1, MAX_INPUT_PARTITIONS) or 1,
        include_headers=values.flag("includeHeaders", False),
    )


def sink_options(option_values: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Validate the options of the sink; raise `WrongOption` for the first invalid one."""
    values = OptionValues(option_values)
    values.check_names(SINK_OPTIONS, _SPARK_OPTIONS)
    servers = values.server_options()
    if not servers.servers:
        raise WrongOption("option servers says where to write to, as host:port, and is missing")
    topics = values.topics("topic")
    if len(topics) > 1:
        raise WrongOption(
            "option topic is the one topic of all rows; to write to several topics, leave it out "
            "and add a column topic"
        )
    if streaming:
        values.reject(
            ("writeId", "writeStep"),
            "is for a batch only; a stream is identified by its checkpoint, and stores no row of "
            "its batches twice",
        )
    else:
        values.reject(("onTopicReplaced",), "is for a stream only")
    write_id = values.text("writeId")
    if write_id is None:
        values.reject(("writeStep",), "goes with writeId, the name of the write")
    if write_id is not None and not _NAME.fullmatch(write_id):
        raise WrongOption(
            f"option writeId is up to 100 letters, digits, '.', '_' and '-', not {write_id!r}"
        )
    return SinkOptions(
        **asdict(servers),
        topic=topics[0] if topics else None,
        partitions=values.number("partitions", 1, MAX_TOPIC_PARTITIONS),
        columns={
            name: column for name in RECORD_FIELDS if (column := values.text(name)) is not None
        },
        id_column=values.text("idColumn"),
        write_id=write_id,
        write_step=values.number("writeStep", 0) or 0,
        on_topic_replaced=values.choice("onTopicReplaced", (ERROR, CONTINUE), ERROR),
        fail_on_extra_rows=values.flag("failOnExtraRows", True),
    )


def is_topic(name: str) -> bool:
    """Return whether a topic can have this name."""
    return _NAME.fullmatch(name) is not None


class OptionValues:
    """Options as Spark passes them: text by name, where the case of a name is ignored."""

    def __init__(self, option_values: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in option_values.items()}

    def check_names(self, names: tuple[str, ...], ignored: tuple[str, ...] = ()) -> None:
        """Raise for an option that is neither in ``names`` nor ``ignored``."""
        known = {name.lower() for name in (*names, *ignored)}
        for name in sorted(self._values):
            if name not in known:
                raise WrongOption(
                    f"there is no option {name!r}{_suggestion(name, names)}; "
                    f"options: {', '.join(names)}"
                )

    def text(self, name: str) -> str | None:
        """Return the value of an option; None if it is not set."""
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise WrongOption(f"option {name} is empty; give a value, or leave it out")
        return value

    def require_one(self, one: str, other: str, what: str) -> None:
        """Raise unless exactly one of two options is set."""
        found = [name for name in (one, other) if self.text(name) is not None]
        if len(found) != 1:
            count = "both are given" if found else "neither is given"
            raise WrongOption(f"options {one} and {other} say {what}: {count}, and one is needed")

    def exclude(self, names: tuple[str, ...]) -> None:
        """Raise if more than one of the options is set."""
        found = [name for name in names if self.text(name) is not None]
        if len(found) > 1:
            raise WrongOption(f"options {' and '.join(found)} exclude each other; give one of them")

    def reject(self, names: tuple[str, ...], why: str) -> None:
        """Raise if one of the options is set."""
        for name in names:
            if self.text(name) is not None:
                raise WrongOption(f"option {name} {why}")

    def flag(self, name: str, default: bool) -> bool:
        """Return the value of a Boolean option."""
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise WrongOption(f"option {name} is true or false, not {value!r}")
        return value.strip().lower() == "true"

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return the value of an option that must be one of ``choices``."""
        value = self.text(name)
        lowered = default if value is None else value.strip().lower()
        if lowered not in choices:
            raise WrongOption(f"option {name} must be one of {', '.join(choices)}, not {value!r}")
        return lowered

    def number(
        self, name: str, least: int, most: int = _MAX_NUMBER, *, unit: str = ""
    ) -> int | None:
        """Return the value of an option that is an integer within bounds; None if it is not set."""
        value = self.text(name)
        if value is None:
            return None
        digits = value.strip()
        if not digits.isascii() or not digits.isdecimal() or not least <= int(digits) <= most:
            upper = "" if most == _MAX_NUMBER else f" to {most}"
            raise WrongOption(
                f"option {name} is {unit}a whole number from {least}{upper}, not {value!r}"
            )
        return int(digits)

    def entries(self, name: str) -> tuple[str, ...]:
        """Return the entries of a comma-separated list without duplicates."""
        value = self.text(name)
        if value is None:
            return ()
        entries = tuple(entry.strip() for entry in value.split(","))
        if "" in entries or len(set(entries)) != len(entries):
            raise WrongOption(f"option {name}: {value!r} has an empty or a repeated entry")
        return entries

    def topics(self, name: str) -> tuple[str, ...]:
        """Return the topics in a comma-separated list."""
        topics = self.entries(name)
        for topic in topics:
            if not is_topic(topic):
                raise WrongOption(
                    f"option {name}: {topic!r} cannot be the name of a topic; use up to 100 "
                    "letters, digits, dots, dashes and underscores, starting with a letter or digit"
                )
        return topics

    def server_options(self) -> ServerOptions:
        """Return the options about the connection to servers."""
        self.exclude(_TRUST_OPTIONS)
        servers = self.entries("servers")
        for server in servers:
            found = _SERVER.fullmatch(server)
            if not found or not 1 <= int(found[2]) <= 65_535:
                raise WrongOption(
                    f"option servers: {server!r} is not host:port; the default port of an ingest "
                    "server is 4434"
                )
        return ServerOptions(
            servers=servers,
            trust_ca=self.text("trustCa"),
            trust_pin=self.text("trustPin"),
            trust_development=self.flag("trustDevelopment", False),
            token=self.text("token"),
        )


def _suggestion(name: str, names: Sequence[str]) -> str:
    """Return the option that was probably meant, as a part of a sentence; empty if unknown."""
    if name in _KAFKA_OPTIONS:
        same = _KAFKA_OPTIONS[name]
        return f", which is {same} here" if same in names else ", and none is needed"
    lower = {each.lower(): each for each in names}
    close = get_close_matches(name, lower, 1, 0.8)
    return f" (did you mean {lower[close[0]]}?)" if close else ""


def _position(values: OptionValues, name: str, default: int) -> Position:
    value = values.text(name)
    if value is None:
        return Position(default)
    lowered = value.strip().lower()
    if lowered in ("earliest", "latest"):
        return Position(EARLIEST if lowered == "earliest" else LATEST)
    if not lowered.startswith("{"):
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


def _check_positions(start: Position, end: Position, streaming: bool | None) -> None:
    if end.everywhere == EARLIEST or EARLIEST in end.offsets.values():
        raise WrongOption("option endingOffsets: a batch cannot end at the earliest offset")
    if streaming is False and (start.everywhere == LATEST or LATEST in start.offsets.values()):
        raise WrongOption(
            "option startingOffsets: a batch that starts at the latest offset has no rows; give "
            "earliest, or an offset for each partition"
        )
    for partition, first in start.offsets.items():
        last = end.offsets.get(partition, first)
        if first > last >= 0:
            raise WrongOption(
                f"options startingOffsets and endingOffsets: {partition} starts at {first}, "
                f"after its end at {last}"
            )


def _pattern(values: OptionValues) -> str | None:
    pattern = values.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise WrongOption(
                f"option subscribePattern: {pattern!r} is not a regular expression: {error}"
            ) from None
    return pattern
