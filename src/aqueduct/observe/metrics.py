"""Counters of connections for Prometheus: an observer that users attach to clients and servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from aqueduct.observe.base import NullObserver, ObservedConnection, Observer, PortCounters
from aqueduct.protocol.events import ConnectionEnded, Delivered, Event, Undelivered
from aqueduct.wire.frames import MessageFrame, MessageRun

_HELP = {
    "connections_total": "Connections opened.",
    "connections_ended_total": "Connections ended, by close code.",
    "channels_total": "Channels that this side created.",
    "bytes_sent_total": "Bytes of streams and datagrams that were sent.",
    "bytes_received_total": "Bytes of streams and datagrams that were received.",
    "messages_received_total": "Messages that the application received.",
    "messages_delivered_total": "Messages that the peer acknowledged.",
    "messages_lost_total": "Messages that the peer did not receive.",
}


class ConnectionMetrics:
    """Counts what connections do, and formats the counters for Prometheus.

    Pass one to ``observers`` of `connect` and `serve`; it may count any number of connections::

        metrics = ConnectionMetrics()
        async with aqueduct.serve(address, tls=tls, observers=[metrics]) as server:
            ...
            print(metrics.text())
    """

    def __init__(self) -> None:
        self._counters: Counter[tuple[str, str]] = Counter()

    def __call__(self, connection: ObservedConnection) -> Observer:
        """Return the observer of one connection."""
        side = f'side="{connection.side}"'
        self._counters["connections_total", side] += 1
        return _Counting(self._counters, side)

    def text(self) -> str:
        """Return all counters in the text format of Prometheus."""
        lines: list[str] = []
        for name, what in _HELP.items():
            lines.append(f"# HELP aqueduct_{name} {what}")
            lines.append(f"# TYPE aqueduct_{name} counter")
            for (counter, labels), value in sorted(self._counters.items()):
                if counter == name:
                    lines.append(f"aqueduct_{name}{{{labels}}} {value}")
        return "\n".join(lines) + "\n"


class _Counting(NullObserver):
    """Adds what one connection does to counters that connections share."""

    def __init__(self, counters: Counter[tuple[str, str]], side: str) -> None:
        self._counters = counters
        self._side = side

    def stream_written(self, stream: int, data: bytes, fin: bool) -> None:
        self._counters["bytes_sent_total", self._side] += len(data)

    def stream_read(self, stream: int, data: bytes, fin: bool) -> None:
        self._counters["bytes_received_total", self._side] += len(data)

    def datagram_written(self, data: bytes) -> None:
        self._counters["bytes_sent_total", self._side] += len(data)

    def datagram_read(self, data: bytes) -> None:
        self._counters["bytes_received_total", self._side] += len(data)

    def channels_created(
        self,
        carrier: int,
        number: int,
        reliable: bool,
        channels: Sequence[int],
        modes: Sequence[str],
    ) -> None:
        self._counters["channels_total", self._side] += len(channels)

    def messages_taken(self, channel: int, batch: Sequence[MessageFrame | MessageRun]) -> None:
        count = sum(len(one.payloads) if isinstance(one, MessageRun) else 1 for one in batch)
        self._counters["messages_received_total", self._side] += count

    def events_raised(self, events: Sequence[Event], ports: Mapping[int, PortCounters]) -> None:
        for event in events:
            if isinstance(event, Delivered | Undelivered):
                verb = "delivered" if isinstance(event, Delivered) else "lost"
                labels = f'{self._side},reliable="{str(event.reliable).lower()}"'
                count = sum(stop - start for start, stop in event.ranges)
                self._counters[f"messages_{verb}_total", labels] += count
            elif isinstance(event, ConnectionEnded):
                labels = f'{self._side},code="{event.code:#x}"'
                self._counters["connections_ended_total", labels] += 1
