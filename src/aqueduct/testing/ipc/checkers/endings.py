"""Endings: each send ends once, nothing stays allocated, and the statistics are right."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.checkers.rules import EPSILON
from aqueduct.testing.ipc.checkers.base import about, checker
from aqueduct.testing.ipc.checkers.facts import APPLICATION, RESET, IpcFacts


@checker
def only_documented_errors(facts: IpcFacts) -> Iterator[Violation]:
    """A core raises only documented errors, and its timer advances."""
    for broke in facts.broken:
        yield Violation(broke.text, broke.time)


@checker
def every_send_ends_once(facts: IpcFacts) -> Iterator[Violation]:
    """A send ends exactly once, unless its endpoint crashes first; then not at all."""
    for end in facts.strange_ends:
        text = f"{end.endpoint}/{end.life} got the end of a message that it did not send"
        yield Violation(text, end.time)
    for message in facts.messages.values():
        life = facts.life_of(message)
        if len(message.ends) > 1:
            text = f"ended {len(message.ends)} times"
            yield about(message, text, message.ends[1].time)
        elif not message.ends and life is not None and facts.record.drained:
            if life.stopped is None or life.stopped.how != "crashed":
                yield about(message, "never ended")
        for end in message.ends:
            if (end.endpoint, end.life) != (message.sent.endpoint, message.sent.life):
                yield about(message, f"ended in life {end.life}", end.time)


@checker
def cancelled_at_once(facts: IpcFacts) -> Iterator[Violation]:
    """A send that is cancelled ends at that instant."""
    for message in facts.messages.values():
        end = message.end
        if end is not None and end.time > message.cancelled + EPSILON:
            text = f"was cancelled, and ended with {end.code} later"
            yield about(message, text, end.time)
        if end is not None and end.code == RESET and message.cancelled > end.time + EPSILON:
            yield about(message, "was reset without a cancel", end.time)


@checker
def unreachable_at_once(facts: IpcFacts) -> Iterator[Violation]:
    """Sends to an unreachable remote end when the transport reports it, and not otherwise."""
    for message in facts.messages.values():
        life = facts.life_of(message)
        end = message.end
        if life is None or end is None:
            continue
        known = life.unreachable.get(message.sent.remote, ())
        if any(message.sent.time + EPSILON < time < end.time - EPSILON for time in known):
            yield about(message, "continued to an unreachable remote", end.time)
        if end.code == APPLICATION and not any(abs(time - end.time) < EPSILON for time in known):
            yield about(message, "failed as unreachable without a report", end.time)


@checker
def nothing_left(facts: IpcFacts) -> Iterator[Violation]:
    """After all messages ended, nothing is held; later, no id is remembered."""
    if not facts.record.drained:
        return
    for endpoint, held in facts.record.leftovers.items():
        if held:
            text = ", ".join(f"{count} {kind}" for kind, count in sorted(held.items()))
            yield Violation(f"{endpoint} still holds {text}")
    for endpoint, count in facts.record.processed.items():
        if count:
            yield Violation(f"{endpoint} still remembers {count} processed messages")


@checker
def within_the_limits(facts: IpcFacts) -> Iterator[Violation]:
    """An endpoint never holds more messages or bytes than its limits."""
    for (endpoint, number), (count, size) in facts.record.most_held.items():
        config = facts.lives[endpoint, number].config
        for what, held, most in (
            ("messages", count, config.max_receives),
            ("bytes", size, config.max_received),
        ):
            if held > most:
                text = f"{endpoint}/{number} held {held} {what}, over {most}"
                yield Violation(text)


@checker
def statistics_are_right(facts: IpcFacts) -> Iterator[Violation]:
    """The statistics of an endpoint match the record."""
    for (endpoint, number), life in facts.lives.items():
        if life.stopped is None:
            continue
        statistics = life.stopped.statistics
        # Closing refuses the messages that the application neither took nor refused.
        closed = life.stopped.how == "closed"
        refused = max(statistics.refused, life.refused) if closed else life.refused
        for name, count, seen in (
            ("sent", statistics.sent, life.sent),
            ("failed", statistics.failed, life.failed),
            ("received", statistics.received, life.taken),
            ("pdus_sent", statistics.pdus_sent, life.pdus_sent),
            ("pdus_received", statistics.pdus_received, life.pdus_received),
            ("refused", statistics.refused, refused),
        ):
            if count != seen:
                text = f"{endpoint}/{number} counted {count} {name}, and there were {seen}"
                yield Violation(text, life.stopped.time)
