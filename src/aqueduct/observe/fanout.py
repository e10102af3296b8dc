"""Several observers of one connection, called as one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from aqueduct.observe.base import ObservedConnection, Observer, ObserverFactory

logger = logging.getLogger("aqueduct.observe")


def observe(connection: ObservedConnection, factories: Iterable[ObserverFactory]) -> FanOut | None:
    """Return the observers that the factories make for a connection; None if there are none."""
    observers: list[Observer] = []
    for factory in factories:
        try:
            observer = factory(connection)
        except Exception:
            logger.exception("%r raised: the connection is not observed by it", factory)
        else:
            if observer is not None:
                observers.append(observer)
    return FanOut(observers) if observers else None


def _to_each(name: str) -> Callable[..., None]:
    """Return a method that calls the method of this name on each observer."""

    def call(fan_out: FanOut, *arguments: Any) -> None:
        for observer in fan_out.observers:
            try:
                getattr(observer, name)(*arguments)
            except Exception:  # noqa: BLE001 -- the connection must not fail with an observer
                fan_out.detach(observer)

    return call


class FanOut:
    """Passes each call to all observers, in order, and detaches an observer that raises."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = tuple(observers)

    def detach(self, observer: Observer) -> None:
        """Log the exception being handled, and stop calling an observer."""
        logger.exception("%r raised: it no longer observes its connection", observer)
        self.observers = tuple(one for one in self.observers if one is not observer)

    stream_written = _to_each("stream_written")
    stream_read = _to_each("stream_read")
    datagram_written = _to_each("datagram_written")
    datagram_read = _to_each("datagram_read")
    reset_written = _to_each("reset_written")
    reset_read = _to_each("reset_read")
    channels_created = _to_each("channels_created")
    messages_taken = _to_each("messages_taken")
    messages_rescued = _to_each("messages_rescued")
    receiver_closed = _to_each("receiver_closed")
    events_raised = _to_each("events_raised")
