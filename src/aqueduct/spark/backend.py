"""Where topics are stored: a landing directory, or ingest servers over cached connections."""

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
from aqueduct.spark.options import ServerOptions, SourceOptions
from aqueduct.spark.worker import ConnectionCache

T = TypeVar("T")


@dataclass(frozen=True)
class Backend:
    """A landing directory or one server, with everything that a task needs to read from it."""

    path: str | None = None
    server: str = ""
    trust: Trust = field(default_factory=Trust, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.path if self.path is not None else f"server {self.server}"

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """Return all topics, or one."""
        return self._call(lambda reader: reader.topics(topic))

    def offsets_at(self, topic: str, time: float) -> dict[int, int]:
        """Return, by partition, the first offset stored at or after a time (seconds since 1970)."""
        return self._call(lambda reader: reader.offsets_at(topic, time))

    def history(self, info: TopicInfo) -> History:
        """Return the history of a topic; request it only when the id or the epoch has changed."""
        if not info.id:
            return History()
        key = self, info.topic
        known = _histories.get(key)
        if known is None or known[0] != (info.id, info.epoch):
            found = self._call(lambda reader: reader.history(info.topic))
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
        """Yield rows as `aqueduct.ingest` returns them; raise the errors of ingest and channels."""
        return self._reader().read(topic, partition, start, end, position=position)

    def disconnect(self) -> None:
        """Close the cached connection; the next request opens a new one."""
        _readers.drop(self)

    def _call(self, request: Callable[[Reader | DirectoryReader], T]) -> T:
        """Send a request; retry it once over a new connection if the cached one is broken."""
        try:
            return request(self._reader())
        except (ConnectError, IngestError):
            raise
        except AqueductError:
            self.disconnect()
            return request(self._reader())

    def _reader(self) -> Reader | DirectoryReader:
        if self.path is not None:
            return DirectoryReader(self.path)
        return _readers.get(self)


def _open(backend: Backend) -> Reader:
    reader = Reader(backend.server, trust=backend.trust, token=backend.token)
    reader.__enter__()
    return reader


_readers = ConnectionCache(_open, lambda reader: reader.__exit__(None, None, None))
_histories: dict[tuple[Backend, str], tuple[tuple[str, str], History]] = {}
"""By backend and topic: the id and newest epoch at the time of the request, and the history."""


def source_backends(options: SourceOptions) -> list[Backend]:
    """Return the backends to read from; raise `WrongOption` for an invalid path or trust."""
    if options.path is not None:
        return [Backend(path=_local_path(options.path))]
    return server_backends(options)


def server_backends(options: ServerOptions) -> list[Backend]:
    """Return a backend for each server; raise `WrongOption` for invalid trust."""
    trusted = _trust(options)
    return [Backend(server=each, trust=trusted, token=options.token) for each in options.servers]


def _local_path(path: str) -> str:
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
class LocatedTopic:
    """A topic and the backend that stores it."""

    backend: Backend
    info: TopicInfo


def find_topics(options: SourceOptions, backends: list[Backend]) -> dict[str, LocatedTopic]:
    """Return the topics to read, sorted by name; raise `SourceError` for a missing topic."""
    if options.pattern:
        listed = _matching(options.pattern, backends)
    else:
        listed = _subscribed(options, backends)
    found: dict[str, LocatedTopic] = {}
    for each in sorted(listed, key=lambda each: each.info.topic):
        topic = each.info.topic
        if topic in found:
            raise SourceError(
                f"topic {topic!r} is on {found[topic].backend} and on {each.backend}; name only "
                "the server to read from in option servers"
            )
        found[topic] = each
    return found


def _matching(pattern: str, backends: list[Backend]) -> list[LocatedTopic]:
    return [
        LocatedTopic(backend, info)
        for backend in backends
        for info in list_topics(backend, None)
        if re.fullmatch(pattern, info.topic)
    ]


def _subscribed(options: SourceOptions, backends: list[Backend]) -> list[LocatedTopic]:
    found = []
    for topic in options.topics:
        faults: list[str] = []
        holders = []
        for backend in backends:
            try:
                holders += [LocatedTopic(backend, info) for info in list_topics(backend, topic)]
            except (UnknownTopic, NotAllowed) as error:
                faults.append(f"{backend}: {error}")
        if not holders:
            raise SourceError(f"option subscribe: no topic {topic!r}; {'; '.join(faults)}")
        found += holders
    return found


def list_topics(
    backend: Backend, topic: str | None, kind: type[SourceError | SinkError] = SourceError
) -> list[TopicInfo]:
    """Return all topics of a backend, or one.

    Raises `UnknownTopic` and `NotAllowed` unchanged, and other errors as `Unreachable` or ``kind``
    with a hint that names options.
    """
    try:
        return backend.topics(topic)
    except (UnknownTopic, NotAllowed):
        raise
    except ConnectError as error:
        # Without a cause: Spark would print sixty lines of traceback before the message.
        raise unreachable_error(backend, error) from None
    except AqueductError as error:
        raise kind(f"{backend} cannot list its topics: {error}") from error


def unreachable_error(backend: Backend, error: AqueductError) -> Unreachable:
    """Return the error for a failed connection, with a hint that names options."""
    if isinstance(error, TLSError):
        hint = _TRUST_HINT if error.hint == TRUST_HINT else error.hint
        return Unreachable(f"{backend}: {error.message}{'; ' if hint else ''}{hint}")
    if isinstance(error, Unauthenticated):
        return Unreachable(
            f"{backend} requires a valid token; set option token to one from its tokens file"
        )
    return Unreachable(
        f"{backend} cannot be reached: {error}. Check that an ingest server runs there (aqueduct "
        "topics --server), and that this host may send to its UDP port"
    )


_TRUST_HINT = (
    "set option trustDevelopment=true for a server of this user on this host that was started "
    "without --cert, trustCa for the authority that signed its certificate, or trustPin for its "
    "fingerprint; the default is the authorities of this system"
)
