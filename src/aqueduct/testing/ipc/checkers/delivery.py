"""Delivery: a message is taken at most once, intact, and success means that it was taken."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.checkers.rules import EPSILON
from aqueduct.testing.ipc.checkers.base import about, checker
from aqueduct.testing.ipc.checkers.facts import PEER_RESTARTED, SUCCESS, IpcFacts


@checker
def taken_was_sent(facts: IpcFacts) -> Iterator[Violation]:
    """A message that is taken was sent, to the endpoint that took it."""
    for took in facts.strange_takes:
        text = f"{took.endpoint} took {len(took.payload)} bytes that were not sent"
        yield Violation(text, took.time)
    for message in facts.messages.values():
        for took in message.takes:
            if took.endpoint != message.sent.remote:
                yield about(message, f"was taken by {took.endpoint}", took.time)


@checker
def intact_content(facts: IpcFacts) -> Iterator[Violation]:
    """A message is taken with the bytes it was sent with."""
    for message in facts.messages.values():
        for took in message.takes:
            if took.payload != message.sent.payload:
                text = f"has {len(message.sent.payload)} bytes, and {len(took.payload)} were taken"
                yield about(message, text, took.time)


@checker
def at_most_once(facts: IpcFacts) -> Iterator[Violation]:
    """No message is taken twice, not even by two lives, however its send ended."""
    for message in facts.messages.values():
        if len(message.takes) > 1:
            lives = ", ".join(f"{took.endpoint}/{took.life}" for took in message.takes)
            text = f"was taken {len(message.takes)} times, by {lives}"
            yield about(message, text, message.takes[1].time)


@checker
def success_means_taken(facts: IpcFacts) -> Iterator[Violation]:
    """A send succeeds only after its message was taken."""
    for message in facts.messages.values():
        end = message.end
        if end is None or end.code != SUCCESS:
            continue
        if not message.takes:
            yield about(message, "succeeded, and was not taken", end.time)
        elif message.takes[0].time > end.time + EPSILON:
            yield about(message, "succeeded before it was taken", end.time)


@checker
def refused_means_failed(facts: IpcFacts) -> Iterator[Violation]:
    """The send of a refused message fails, and the message is not taken."""
    for message in facts.messages.values():
        if not message.refusals:
            continue
        end = message.end
        if end is not None and end.code == SUCCESS:
            yield about(message, "was refused, and succeeded", end.time)
        for took in message.takes:
            if took.life == message.refusals[0].life:
                yield about(message, "was refused, and taken", took.time)


@checker
def not_exposed_means_not_taken(facts: IpcFacts) -> Iterator[Violation]:
    """A send that failed as not exposed was not taken, so it can be retried."""
    for message in facts.messages.values():
        end = message.end
        if end is not None and end.code != SUCCESS and not end.exposed and message.takes:
            text = "failed as not exposed, and was taken"
            yield about(message, text, end.time)


@checker
def aborted_means_not_taken(facts: IpcFacts) -> Iterator[Violation]:
    """A message whose abort arrived while it waited is not taken."""
    for message in facts.messages.values():
        for took in message.takes:
            life = facts.lives[took.endpoint, took.life]
            whole = life.whole.get(took.message, took.time)
            began = {owner for time, owner in life.headers.get(took.message, ()) if time <= whole}
            for time, owner in life.aborts.get(took.message, ()):
                if whole < time < took.time and began == {owner}:
                    yield about(message, "was taken after its abort", took.time)


@checker
def success_without_faults(facts: IpcFacts) -> Iterator[Violation]:
    """A message sent after the faults stopped succeeds."""
    for message in facts.messages.values():
        end = message.end
        if not message.sent.must_arrive or end is None or end.code == SUCCESS:
            continue
        # An owner id with a long trust time may belong to a previous life.
        if end.code != PEER_RESTARTED or (message.sent.remote, 2) not in facts.lives:
            yield about(message, f"failed with {end.code}", end.time)


@checker
def restarted_means_restarted(facts: IpcFacts) -> Iterator[Violation]:
    """PEER_RESTARTED is reported only for a remote that restarted."""
    for message in facts.messages.values():
        end = message.end
        if end is not None and end.code == PEER_RESTARTED:
            if (message.sent.remote, 2) not in facts.lives:
                text = "failed with PEER_RESTARTED without a restart"
                yield about(message, text, end.time)
