"""Timing: backoff of retransmissions, ack timeouts, and the lifetime of owner ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from aqueduct.testing.checkers.base import Violation
from aqueduct.testing.checkers.rules import EPSILON, NEVER
from aqueduct.testing.ipc.checkers.base import about, checker
from aqueduct.testing.ipc.checkers.facts import (
    DATA_ACK,
    HEADER_ACK,
    INVALID_DESTINATION,
    PDU_TOO_LARGE,
    SEND_TIMEOUT,
    SUCCESS,
    IpcFacts,
    IpcMessageFacts,
    LifeFacts,
)

CORRECTIONS = (INVALID_DESTINATION, PDU_TOO_LARGE)


@checker
def retries_in_time(facts: IpcFacts) -> Iterator[Violation]:
    """A PDU is retransmitted no sooner than the minimum and no later than the maximum backoff."""
    for message in facts.messages.values():
        life = facts.life_of(message)
        if life is None:
            continue
        least = life.config.min_backoff - EPSILON
        most = life.config.max_backoff + facts.record.lateness + EPSILON
        for before, after in pairwise(message.passes):
            gap = after.time - before.time
            if gap < least and before[1:] == after[1:]:
                text = f"repeated PDU {after.number} after {gap:.6f} s"
                yield about(message, text, after.time)
        if life.reports_sent:
            continue
        end = _end_time(message, life)
        times = [each.time for each in message.passes]
        if times and end < NEVER:
            times.append(end)
        notices = _notices(message)
        rarely = most + life.config.held_backoff - life.config.max_backoff
        for earlier, later in pairwise(times):
            known = [time for time in notices if time <= later]
            since = max(earlier, known[-1]) if known else earlier
            if later - since > (max(most, rarely) if known else most):
                text = f"was not retransmitted for {later - earlier:.6f} s"
                yield about(message, text, later)


@checker
def held_backoff(facts: IpcFacts) -> Iterator[Violation]:
    """After a notice that a message is complete, PDUs are retransmitted at the held backoff."""
    for message in facts.messages.values():
        life = facts.life_of(message)
        # After a correction the sender starts the message again.
        if life is None or any(each.code in CORRECTIONS for each in message.answers[1:]):
            continue
        pause = max(life.config.held_backoff, life.config.min_backoff) - EPSILON
        for notice in _notices(message):
            following = next((each.time for each in message.passes if each.time > notice), NEVER)
            if following - notice < pause:
                text = f"was retransmitted {following - notice:.6f} s after its receiver had it"
                yield about(message, text, following)


@checker
def ack_timeout_as_configured(facts: IpcFacts) -> Iterator[Violation]:
    """A send fails when one PDU had no answer for the ack timeout: not sooner, not later."""
    for message in facts.messages.values():
        life = facts.life_of(message)
        if life is None:
            continue
        timeout = life.config.ack_timeout
        most = timeout + facts.record.lateness + EPSILON
        firsts = _first_passes(message)
        end = _end_time(message, life)
        steps = list(firsts.values())
        for earlier, later in pairwise([*steps, end] if end < NEVER else steps):
            if later - earlier > most:
                text = f"waited {later - earlier:.6f} s for one answer"
                yield about(message, text, later)
        if message.end is not None and message.end.code == SEND_TIMEOUT:
            since = steps[-1] if steps else message.sent.time
            if message.end.time - since < timeout - EPSILON:
                text = f"timed out {message.end.time - since:.6f} s after its last PDU"
                yield about(message, text, message.end.time)
        begun = steps[0] if steps else end
        heard = life.heard.get(message.sent.remote, [])
        last = bisect_right(heard, begun)
        since = max(message.sent.time, heard[last - 1] if last else 0.0)
        if begun < NEVER and begun - since > most:
            text = f"waited {begun - since:.6f} s in the queue, without any answer"
            yield about(message, text, begun)


@checker
def no_idle_queueing(facts: IpcFacts) -> Iterator[Violation]:
    """A message is queued only while others are in flight to the same remote."""
    groups: dict[tuple[str, int, str], list[IpcMessageFacts]] = {}
    for message in facts.messages.values():
        sent = message.sent
        groups.setdefault((sent.endpoint, sent.life, sent.remote), []).append(message)
    for messages in groups.values():
        life = facts.life_of(messages[0])
        if life is None:
            continue
        busy = sorted(
            (message.passes[0].time, _end_time(message, life))
            for message in messages
            if message.passes
        )
        for message in messages:
            begun = message.passes[0].time if message.passes else _end_time(message, life)
            covered = message.sent.time
            for start, end in busy:
                if start <= covered + EPSILON and covered < begun:
                    covered = max(covered, end)
            if covered < begun - EPSILON:
                text = f"waited from {covered:.6f} on although nothing was in flight"
                yield about(message, text, begun)


@checker
def owner_ids_are_fresh(facts: IpcFacts) -> Iterator[Violation]:
    """A message starts with a known owner id only within its trust time after an answer."""
    for message in facts.messages.values():
        life = facts.life_of(message)
        if life is None or not message.passes:
            continue
        first = message.passes[0]
        if first.destination not in facts.owner_ids:
            continue
        remote = message.sent.remote
        heard = life.heard.get(remote, [])
        last = bisect_right(heard, first.time)
        since = heard[last - 1] if last else -NEVER
        if first.time - since > life.config.id_trust + EPSILON:
            text = f"started with an id last confirmed {first.time - since:.6f} s ago"
            yield about(message, text, first.time)
        errors = [time for time in life.transient_errors.get(remote, ()) if time < first.time]
        if errors and errors[-1] > since + EPSILON:
            text = "started with an id from before an error of the remote"
            yield about(message, text, first.time)


@checker
def wrong_ids_are_corrected(facts: IpcFacts) -> Iterator[Violation]:
    """After an answer with the right owner id, PDUs go to that id, or the send has ended."""
    for message in facts.messages.values():
        life = facts.life_of(message)
        if life is None:
            continue
        end = _end_time(message, life)
        for answer, following in pairwise([*message.answers, None]):
            if (
                answer is None
                or answer.code != INVALID_DESTINATION
                or answer.opcode != HEADER_ACK
                or answer.source != message.sent.remote
                or len(answer.payload) != 16
                or end <= answer.time
                or any(each.number for each in message.passes[: answer.passes])
            ):
                continue
            until = following.passes if following is not None else len(message.passes)
            for each in message.passes[answer.passes : until]:
                if each.wire_id != answer.wire_id:
                    break
                if each.destination != answer.payload:
                    text = "continued with another id than the stated one"
                    yield about(message, text, each.time)
                    break


def _first_passes(message: IpcMessageFacts) -> dict[int, float]:
    """Return when each PDU of a message was first sent."""
    firsts: dict[int, float] = {}
    for each in message.passes:
        firsts.setdefault(each.number, each.time)
    return firsts


def _notices(message: IpcMessageFacts) -> list[float]:
    """Return when acks for the PDU after the current one reported the message as complete."""
    return [
        answer.time
        for answer in message.answers
        if answer.opcode == DATA_ACK
        and answer.code == SUCCESS
        and answer.source == message.sent.remote
        and answer.passes
        and answer.wire_id == message.passes[answer.passes - 1].wire_id
        and answer.number == message.passes[answer.passes - 1].number + 1
    ]


def _end_time(message: IpcMessageFacts, life: LifeFacts) -> float:
    """Return when a send ended, or its endpoint stopped."""
    if message.ends:
        return message.ends[0].time
    return life.stopped.time if life.stopped is not None else NEVER
