"""Sizes: PDUs stay within the limits of their sender and of their receiver."""

from __future__ import annotations

from collections.abc import Iterator

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.checkers.rules import EPSILON, NEVER
from aqueduct.testing.ipc.checkers.base import about, checker
from aqueduct.testing.ipc.checkers.facts import HEAD, MAX_ACK, IpcFacts, Life, stated_size


@checker
def pdus_within_the_limit(facts: IpcFacts) -> Iterator[Violation]:
    """A message is sent in PDUs of the size that its endpoint had at the start of the send."""
    for message in facts.messages.values():
        life = facts.life_of(message)
        if life is None or not message.passes:
            continue
        limit = life.max_pdu(message.passes[0].time)
        largest = max(each.size for each in message.passes) + HEAD
        if largest > limit:
            text = f"travelled in a PDU of {largest} bytes, over {limit}"
            yield about(message, text)


@checker
def pdus_within_the_stated_size(facts: IpcFacts) -> Iterator[Violation]:
    """After a receiver stated its maximum PDU size, no larger PDU is sent to it."""
    stated: dict[tuple[Life, str], tuple[float, int]] = {}
    for message in facts.messages.values():
        sent = message.sent
        given_up: set[bytes] = set()
        for answer in message.answers:
            size = stated_size(answer)
            if size is None or answer.source != sent.remote or answer.wire_id in given_up:
                continue
            if any(each.number for each in message.passes[: answer.passes]):
                continue
            if message.end is not None and message.end.time <= answer.time:
                continue
            key = ((sent.endpoint, sent.life), sent.remote)
            if answer.time < stated.get(key, (NEVER, 0))[0]:
                stated[key] = (answer.time, size)
            following = message.passes[answer.passes :]
            if not following or following[0].wire_id != answer.wire_id:
                given_up.add(answer.wire_id)
            if any(each.size > size for each in following):
                text = f"continued in PDUs larger than the stated {size}"
                yield about(message, text, answer.time)
    for message in facts.messages.values():
        sent = message.sent
        life = facts.life_of(message)
        since, size = stated.get(((sent.endpoint, sent.life), sent.remote), (NEVER, 0))
        # An endpoint that remembers few remotes may have dropped the size.
        if life is None or life.config.max_remotes == 1 or not message.passes:
            continue
        first = message.passes[0]
        if first.time > since + EPSILON and first.size > size:
            text = f"started with a PDU larger than the {size} stated before"
            yield about(message, text, first.time)


@checker
def acks_are_small(facts: IpcFacts) -> Iterator[Violation]:
    """An ack has at most 512 bytes."""
    for entry in facts.large_acks:
        text = f"{entry.endpoint} sent an ack of {len(entry.pdu)} bytes, over {MAX_ACK}"
        yield Violation(text, entry.time)
