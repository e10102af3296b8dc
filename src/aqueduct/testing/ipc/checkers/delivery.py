"""What becomes of messages: each is taken once at most, as it was sent, and success means taken."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.ipc.checkers.base import about, checker
from aqueduct.testing.ipc.checkers.facts import EPSILON, PEER_RESTARTED, SUCCESS, IpcFacts


@checker
def nothing_from_nowhere(facts: IpcFacts) -> Iterator[Violation]:
    """What is taken was sent, to the one who took it."""
    for took in facts.strange_takes:
        text = f"{took.who} took {len(took.payload)} bytes that nobody sent"
        yield Violation("nothing from nowhere", text, took.time)
    for message in facts.messages.values():
        for took in message.takes:
            if took.who != message.sent.remote:
                yield about(message, "nothing from nowhere", f"was taken by {took.who}", took.time)


@checker
def intact_content(facts: IpcFacts) -> Iterator[Violation]:
    """A message is taken with the bytes it was sent with."""
    for message in facts.messages.values():
        for took in message.takes:
            if took.payload != message.sent.payload:
                text = f"has {len(message.sent.payload)} bytes, and {len(took.payload)} were taken"
                yield about(message, "intact content", text, took.time)


@checker
def at_most_once(facts: IpcFacts) -> Iterator[Violation]:
    """No message is taken twice, by whatever lives of the receiver, whatever became of its send."""
    for message in facts.messages.values():
        if len(message.takes) > 1:
            lives = ", ".join(f"{took.who}/{took.life}" for took in message.takes)
            text = f"was taken {len(message.takes)} times, by {lives}"
            yield about(message, "at most once", text, message.takes[1].time)


@checker
def success_means_taken(facts: IpcFacts) -> Iterator[Violation]:
    """Who is told of success is told the truth, and not before it is true."""
    for message in facts.messages.values():
        end = message.end
        if end is None or end.code != SUCCESS:
            continue
        if not message.takes:
            yield about(message, "success means taken", "succeeded, and nobody took it", end.time)
        elif message.takes[0].time > end.time + EPSILON:
            yield about(message, "success means taken", "succeeded before it was taken", end.time)


@checker
def refused_means_failed(facts: IpcFacts) -> Iterator[Violation]:
    """The send of a message that was refused does not succeed, and nobody takes it."""
    for message in facts.messages.values():
        if not message.refusals:
            continue
        end = message.end
        if end is not None and end.code == SUCCESS:
            yield about(message, "refused means failed", "was refused, and succeeded", end.time)
        for took in message.takes:
            if took.life == message.refusals[0].life:
                yield about(message, "refused means failed", "was refused, and taken", took.time)


@checker
def not_exposed_means_not_taken(facts: IpcFacts) -> Iterator[Violation]:
    """A send that failed without having been exposed can be sent anew: nobody has it."""
    for message in facts.messages.values():
        end = message.end
        if end is not None and end.code != SUCCESS and not end.exposed and message.takes:
            text = "failed as not exposed, and was taken"
            yield about(message, "not exposed means not taken", text, end.time)


@checker
def aborted_means_not_taken(facts: IpcFacts) -> Iterator[Violation]:
    """A message whose abort came while it waited to be taken is not taken."""
    for message in facts.messages.values():
        for took in message.takes:
            life = facts.lives[took.who, took.life]
            whole = life.whole.get(took.message, took.time)
            began = {owner for time, owner in life.headers.get(took.message, ()) if time <= whole}
            for time, owner in life.aborts.get(took.message, ()):
                if whole < time < took.time and began == {owner}:
                    yield about(
                        message, "aborted means not taken", "was taken after its abort", took.time
                    )


@checker
def peace_means_success(facts: IpcFacts) -> Iterator[Violation]:
    """A message sent when nothing is wrong any more arrives."""
    for message in facts.messages.values():
        end = message.end
        if not message.sent.must_arrive or end is None or end.code == SUCCESS:
            continue
        # An id that is trusted for long may be that of a life which is over.
        if end.code != PEER_RESTARTED or (message.sent.remote, 2) not in facts.lives:
            yield about(message, "peace means success", f"failed with {end.code}", end.time)


@checker
def restarted_means_restarted(facts: IpcFacts) -> Iterator[Violation]:
    """PEER_RESTARTED is said only of a remote that has had another life."""
    for message in facts.messages.values():
        end = message.end
        if end is not None and end.code == PEER_RESTARTED:
            if (message.sent.remote, 2) not in facts.lives:
                text = "failed for a restart that never was"
                yield about(message, "restarted means restarted", text, end.time)
