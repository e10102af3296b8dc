"""Endings: each send ends once, nothing stays allocated, and the statistics are right."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.ipc.checkers.base import about, checker
from aqueduct.testing.ipc.checkers.facts import APPLICATION, EPSILON, RESET, IpcFacts


@checker
def only_documented_errors(facts: IpcFacts) -> Iterator[Violation]:
    """A core raises only documented errors, and its timer advances."""
    for broke in facts.broken:
        yield Violation("only documented errors", broke.text, broke.time)


@checker
def every_send_ends_once(facts: IpcFacts) -> Iterator[Violation]:
    """A send ends exactly once, unless its endpoint crashes first; then not at all."""
    for end in facts.strange_ends:
        text = f"{end.who}/{end.life} was told of a message that it did not send"
        yield Violation("every send ends once", text, end.time)
    for message in facts.messages.values():
        life = facts.life_of(message)
        if len(message.ends) > 1:
            text = f"ended {len(message.ends)} times"
            yield about(message, "every send ends once", text, message.ends[1].time)
        elif not message.ends and life is not None and facts.record.drained:
            if life.stopped is None or life.stopped.how != "crashed":
                yield about(message, "every send ends once", "never ended")
        for end in message.ends:
            if (end.who, end.life) != (message.sent.who, message.sent.life):
                yield about(message, "every send ends once", f"ended in life {end.life}", end.time)


@checker
def cancelled_at_once(facts: IpcFacts) -> Iterator[Violation]:
    """A send that is cancelled ends at that instant."""
    for message in facts.messages.values():
        end = message.end
        if end is not None and end.time > message.cancelled + EPSILON:
            text = f"was cancelled, and ended with {end.code} later"
            yield about(message, "cancelled at once", text, end.time)
        if end is not None and end.code == RESET and message.cancelled > end.time + EPSILON:
            yield about(message, "cancelled at once", "was reset by nobody", end.time)


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
            yield about(message, "unreachable at once", "went on to nowhere", end.time)
        if end.code == APPLICATION and not any(abs(time - end.time) < EPSILON for time in known):
            yield about(message, "unreachable at once", "was given up for no reason", end.time)


@checker
def nothing_left(facts: IpcFacts) -> Iterator[Violation]:
    """After all messages ended, nothing is held; later, no id is remembered."""
    if not facts.record.drained:
        return
    for who, held in facts.record.leftovers.items():
        if held:
            text = ", ".join(f"{count} {kind}" for kind, count in sorted(held.items()))
            yield Violation("nothing left", f"{who} still holds {text}")
    for who, count in facts.record.processed.items():
        if count:
            yield Violation("nothing left", f"{who} still remembers {count} processed messages")


@checker
def within_the_limits(facts: IpcFacts) -> Iterator[Violation]:
    """An endpoint never holds more messages or bytes than its limits."""
    for (who, number), (count, size) in facts.record.most_held.items():
        config = facts.lives[who, number].config
        for what, held, most in (
            ("messages", count, config.max_receives),
            ("bytes", size, config.max_received),
        ):
            if held > most:
                text = f"{who}/{number} held {held} {what}, over {most}"
                yield Violation("within the limits", text)


@checker
def statistics_are_right(facts: IpcFacts) -> Iterator[Violation]:
    """The statistics of an endpoint match the record."""
    for (who, number), life in facts.lives.items():
        if life.stopped is None:
            continue
        told = life.stopped.statistics
        for name, count, seen in (
            ("sent", told.sent, life.sent),
            ("failed", told.failed, life.failed),
            ("received", told.received, life.taken),
            ("pdus_sent", told.pdus_sent, life.pdus_sent),
            ("pdus_received", told.pdus_received, life.pdus_received),
        ):
            if count != seen:
                text = f"{who}/{number} counted {count} {name}, and there were {seen}"
                yield Violation("statistics are right", text, life.stopped.time)
        # Closing refuses the messages that the application neither took nor refused.
        if told.refused < life.refused or (
            life.stopped.how != "closed" and told.refused != life.refused
        ):
            text = f"{who}/{number} counted {told.refused} refused, and there were {life.refused}"
            yield Violation("statistics are right", text, life.stopped.time)
