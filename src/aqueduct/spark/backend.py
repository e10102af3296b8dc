"""Where rows are: a landing directory, or ingest servers with a connection that a process keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from aqueduct.errors import AqueductError, ConnectError, TLSError, Unauthenticated
from aqueduct.ingest.blocking import Reader
from aqueduct.ingest.client.reader import DirectoryReader
from aqueduct.ingest.errors import IngestError, NotAllowed, UnknownTopic
from aqueduct.ingest.identity import History, TopicPosition
from aqueduct.ingest.protocol import TopicInfo
from aqueduct.security import TRUST_HINT, Trust, dev_trust, pin, trust
from aqueduct.spark.errors import SinkError, SourceError, Unreachable, WrongOption
from aqueduct.spark.option_values import ServerOptions
from aqueduct.spark.pool import Pool
from aqueduct.spark.source.options import ReadOptions

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """A directory or one server; what a task needs to read from it."""

    path: str | None = None
    server: str = ""
    trust: Trust = field(default_factory=Trust, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.path if self.path is not None else f"server {self.server}"

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """What is there: all topics, or one."""
        return self.ask(lambda reader: reader.topics(topic))

    def offsets_at(self, topic: str, time: float) -> dict[int, int]:
        """By partition, the first offset stored at or after a time (seconds since 1970)."""
        return self.ask(lambda reader: reader.offsets_at(topic, time))

    def history(self, info: TopicInfo) -> History:
        """Return the history of a topic; request it only when the id or the epoch has changed."""
        if not info.id:
            return History()
        key = self, info.topic
        known = _histories.get(key)
        if known is None or known[0] != (info.id, info.epoch):
            found = self.ask(lambda reader: reader.history(info.topic))
            known = _histories[key] = (info.id, info.epoch), found
        return known[1]

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        position: TopicPosition | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows, as `aqueduct.ingest` gives them; errors are those of ingest and of channels."""
        return self._reader().read(topic, partition, start, end, position=position)

    def ask(self, question: Callable[[Reader | DirectoryReader], T]) -> T:
        """Have something answered, over a new connection if the one that was kept is gone."""
        try:
            return question(self._reader())
        except (ConnectError, IngestError):
            raise
        except AqueductError:
            self.forget()
            return question(self._reader())

    def forget(self) -> None:
        """Have the next request make a new connection."""
        _readers.drop(self)

    def _reader(self) -> Reader | DirectoryReader:
        if self.path is not None:
            return DirectoryReader(self.path)
        return _readers.get(self)


def _open(place: Place) -> Reader:
    reader = Reader(place.server, trust=place.trust, token=place.token)
    reader.__enter__()
    return reader


_readers = Pool(_open, lambda reader: reader.__exit__(None, None, None))


_histories: dict[tuple[Place, str], tuple[tuple[str, str], History]] = {}
"""Cache by place and topic: the id and newest epoch at the time of the request, and the history."""


def places(options: ReadOptions) -> list[Place]:
    """Where to look; raises if that cannot be."""
    if options.path is not None:
        return [Place(path=_local(options.path))]
    return servers(options)


def servers(options: ServerOptions) -> list[Place]:
    """The servers that are named."""
    trusted = _trust(options)
    return [Place(server=each, trust=trusted, token=options.token) for each in options.servers]


def _local(path: str) -> str:
    scheme, colon, rest = path.partition(":")
    if colon and scheme == "file":
        return "/" + rest.lstrip("/")
    if colon and rest.startswith("//"):
        raise WrongOption(
            f"option path: {path!r} is not a directory of a file system; mount it, or read from "
            "servers"
        )
    return path


def _trust(options: ServerOptions) -> Trust:
    try:
        if options.trust_ca is not None:
            text = options.trust_ca
            return trust(text.encode() if text.lstrip().startswith("-----BEGIN") else text)
        if options.trust_pin is not None:
            return pin(options.trust_pin.strip().removeprefix("sha256:"))
        return dev_trust() if options.trust_development else trust()
    except TLSError as error:
        name = "trustCa" if options.trust_ca is not None else "trustPin"
        raise WrongOption(f"option {name}: {error}") from error


@dataclass(frozen=True)
class Found:
    """A topic, and where it is."""

    place: Place
    info: TopicInfo


def find_topics(options: ReadOptions, where: list[Place]) -> dict[str, Found]:
    """The topics that are asked for, by name and in order; raises for one that is not there."""
    listed = _matching(options.pattern, where) if options.pattern else _named(options, where)
    found: dict[str, Found] = {}
    for each in sorted(listed, key=lambda each: each.info.topic):
        topic = each.info.topic
        if topic in found:
            raise SourceError(
                f"topic {topic!r} is on {found[topic].place} and on {each.place}; name the server "
                "that is meant in option servers"
            )
        found[topic] = each
    return found


def _matching(pattern: str, where: list[Place]) -> list[Found]:
    return [
        Found(place, info)
        for place in where
        for info in ask_topics(place, None)
        if re.fullmatch(pattern, info.topic)
    ]


def _named(options: ReadOptions, where: list[Place]) -> list[Found]:
    found = []
    for topic in options.topics:
        faults: list[str] = []
        holders = []
        for place in where:
            try:
                holders += [Found(place, info) for info in ask_topics(place, topic)]
            except (UnknownTopic, NotAllowed) as error:
                faults.append(f"{place}: {error}")
        if not holders:
            raise SourceError(f"option subscribe: no topic {topic!r}; {'; '.join(faults)}")
        found += holders
    return found


def ask_topics(
    place: Place, topic: str | None, kind: type[SourceError | SinkError] = SourceError
) -> list[TopicInfo]:
    """What there is, or what is wrong, in words for those who know options and not connections.

    That there is no such topic, or that it may not be read, is for the caller to judge.
    """
    try:
        return place.topics(topic)
    except (UnknownTopic, NotAllowed):
        raise
    except ConnectError as error:
        # Its text says it all; sixty lines of how it came about hide it in what Spark prints.
        raise unreachable(place, error) from None
    except AqueductError as error:
        raise kind(f"{place} does not tell what it has: {error}") from error


def unreachable(place: Place, error: AqueductError) -> Unreachable:
    """That a server cannot be reached, and what to look at."""
    if isinstance(error, TLSError):
        hint = _TRUST_HINT if error.hint == TRUST_HINT else error.hint
        return Unreachable(f"{place}: {error.message}{'; ' if hint else ''}{hint}")
    if isinstance(error, Unauthenticated):
        return Unreachable(
            f"{place} wants a token that it knows; give one of its tokens file in option token"
        )
    return Unreachable(
        f"{place} cannot be reached: {error}. See that an ingest server runs there (aqueduct "
        "topics --server asks it), and that this host may send to its UDP port"
    )


_TRUST_HINT = (
    "say whom to trust: option trustDevelopment=true for a server of this user on this host that "
    "was started without --cert, trustCa for the authority that signed its certificate, or "
    "trustPin for its fingerprint; without them it is the authorities of this system"
)
