"""Each checker accepts a valid run, and finds a violation in a modified one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from aqueduct.ipc.core.pdu import Code, Data, DataAck, Header, HeaderAck, encode_size
from aqueduct.testing.ipc.checkers import CHECKERS, check
from aqueduct.testing.ipc.record import (
    Cancelled,
    IpcArrived,
    IpcEnded,
    IpcEntry,
    IpcFault,
    IpcRecord,
    IpcRefused,
    IpcSent,
    IpcTaken,
    LifeStopped,
    PduArrived,
    PduSent,
    RemoteFailed,
)
from tests.testing.ipc.quiet import quiet_run

Kind = TypeVar("Kind")
Doctor = Callable[[IpcRecord], None]
DOCTORS: list[tuple[str, Doctor]] = []


def clean() -> IpcRecord:
    return quiet_run().run().record


def breaks(name: str) -> Callable[[Doctor], Doctor]:
    def register(doctor: Doctor) -> Doctor:
        DOCTORS.append((name, doctor))
        return doctor

    return register


def last(record: IpcRecord, kind: type[Kind]) -> Kind:
    return [entry for entry in record.entries if isinstance(entry, kind)][-1]


def of_message(record: IpcRecord, kind: type[Kind], message: bytes) -> Kind:
    return next(
        entry
        for entry in record.entries
        if isinstance(entry, kind) and getattr(entry, "message", None) == message
    )


def after(record: IpcRecord, entry: IpcEntry, *added: IpcEntry) -> None:
    at = next(at for at, each in enumerate(record.entries) if each is entry)
    record.entries[at + 1 : at + 1] = added


def farewell(record: IpcRecord) -> IpcSent:
    """Return a message of several PDUs."""
    sent = last(record, IpcSent)
    assert sent.must_arrive
    return sent


def passes(record: IpcRecord, sent: IpcSent) -> list[PduSent]:
    return [
        entry
        for entry in record.entries
        if isinstance(entry, PduSent)
        and (entry.endpoint, entry.life) == (sent.endpoint, sent.life)
        and entry.pdu[6:22] == sent.message
    ]


def test_a_valid_run_has_no_violations() -> None:
    record = clean()
    assert check(record) == []
    assert record.drained
    assert sum(isinstance(entry, IpcTaken) for entry in record.entries) > 4


@breaks("taken was sent")
def _an_unknown_message_is_taken(record: IpcRecord) -> None:
    record.entries.append(IpcTaken(9.0, "bob", 1, b"?" * 16, "ann", b"from nowhere"))


@breaks("taken was sent")
def _a_message_is_taken_by_another(record: IpcRecord) -> None:
    took = last(record, IpcTaken)
    took.endpoint = "ann" if took.endpoint == "bob" else "bob"


@breaks("intact content")
def _a_byte_is_lost(record: IpcRecord) -> None:
    took = last(record, IpcTaken)
    took.payload = took.payload[:-1]


@breaks("at most once")
def _a_message_is_taken_twice(record: IpcRecord) -> None:
    took = last(record, IpcTaken)
    record.entries.append(replace(took, time=took.time + 1.0))


@breaks("success means taken")
def _not_taken(record: IpcRecord) -> None:
    record.entries.remove(last(record, IpcTaken))


@breaks("success means taken")
def _it_is_taken_after_its_success(record: IpcRecord) -> None:
    last(record, IpcTaken).time += 1.0


@breaks("refused means failed")
def _a_refused_message_succeeds(record: IpcRecord) -> None:
    took = last(record, IpcTaken)
    after(record, took, IpcRefused(took.time, took.endpoint, took.life, took.message))


@breaks("not exposed means not taken")
def _a_message_was_exposed_after_all(record: IpcRecord) -> None:
    finished = last(record, IpcEnded)
    finished.code = Code.RESET
    finished.exposed = False


@breaks("aborted means not taken")
def _an_abort_is_ignored(record: IpcRecord) -> None:
    took = last(record, IpcTaken)
    whole = of_message(record, IpcArrived, took.message)
    owner = next(
        entry.pdu[22:38]
        for entry in reversed(record.entries)
        if isinstance(entry, PduArrived) and entry.pdu[6:22] == took.message and entry.pdu[0] == 1
    )
    took.time += 1.0
    abort = Data(took.message, owner, 1).encode()
    after(record, whole, PduArrived(whole.time + 0.5, took.endpoint, took.life, took.remote, abort))


@breaks("success without faults")
def _a_message_fails_for_no_reason(record: IpcRecord) -> None:
    of_message(record, IpcEnded, farewell(record).message).code = Code.SEND_TIMEOUT


@breaks("restarted means restarted")
def _a_restart_is_made_up(record: IpcRecord) -> None:
    last(record, IpcEnded).code = Code.PEER_RESTARTED


@breaks("only documented errors")
def _a_core_raises(record: IpcRecord) -> None:
    record.entries.append(IpcFault(1.0, "core", 0, "KeyError: 7"))


@breaks("every send ends once")
def _a_send_ends_twice(record: IpcRecord) -> None:
    finished = last(record, IpcEnded)
    after(record, finished, replace(finished))


@breaks("every send ends once")
def _a_send_never_ends(record: IpcRecord) -> None:
    record.entries.remove(last(record, IpcEnded))


@breaks("every send ends once")
def _an_unknown_send_ends(record: IpcRecord) -> None:
    after(record, last(record, IpcEnded), IpcEnded(9.0, "ann", 1, b"?" * 16, 0, True))


@breaks("every send ends once")
def _a_send_ends_at_another(record: IpcRecord) -> None:
    finished = last(record, IpcEnded)
    finished.endpoint = "ann" if finished.endpoint == "bob" else "bob"


@breaks("cancelled at once")
def _a_cancelled_send_goes_on(record: IpcRecord) -> None:
    sent = farewell(record)
    after(record, sent, Cancelled(sent.time, sent.endpoint, sent.life, sent.message))


@breaks("cancelled at once")
def _reset_without_cancel(record: IpcRecord) -> None:
    last(record, IpcEnded).code = Code.RESET


@breaks("unreachable at once")
def _a_message_goes_on_to_nowhere(record: IpcRecord) -> None:
    sent = farewell(record)
    when = (sent.time + of_message(record, IpcEnded, sent.message).time) / 2
    after(record, sent, RemoteFailed(when, sent.endpoint, sent.life, sent.remote, permanent=True))


@breaks("unreachable at once")
def _a_message_is_given_up_for_no_reason(record: IpcRecord) -> None:
    last(record, IpcEnded).code = Code.APPLICATION


@breaks("nothing left")
def _something_is_held(record: IpcRecord) -> None:
    record.leftovers["ann"] = {"outgoing": 1}


@breaks("nothing left")
def _something_is_remembered(record: IpcRecord) -> None:
    record.processed["bob"] = 2


@breaks("within the limits")
def _too_many_messages_are_held(record: IpcRecord) -> None:
    record.most_held["ann", 1] = (16_385, 0)


@breaks("within the limits")
def _too_many_bytes_are_held(record: IpcRecord) -> None:
    record.most_held["ann", 1] = (0, 1 << 40)


@breaks("statistics are right")
def _a_message_is_not_counted(record: IpcRecord) -> None:
    last(record, LifeStopped).statistics.sent -= 1


@breaks("statistics are right")
def _a_refusal_is_made_up(record: IpcRecord) -> None:
    last(record, LifeStopped).statistics.refused += 1


@breaks("pdus within the limit")
def _a_pdu_is_too_large(record: IpcRecord) -> None:
    passes(record, farewell(record))[-1].pdu += bytes(600)


@breaks("pdus within the stated size")
def _a_told_size_is_ignored(record: IpcRecord) -> None:
    sent = farewell(record)
    first = passes(record, sent)[0]
    ack = HeaderAck(sent.message, Code.PDU_TOO_LARGE, encode_size(470)).encode()
    after(record, first, PduArrived(first.time, sent.endpoint, sent.life, sent.remote, ack))


@breaks("pdus within the stated size")
def _a_told_size_is_forgotten(record: IpcRecord) -> None:
    sent = farewell(record)
    one = b"1" * 16
    ack = HeaderAck(one, Code.PDU_TOO_LARGE, encode_size(470)).encode()
    early = sent.time - 0.5
    at = record.entries.index(sent)
    record.entries[at:at] = [
        IpcSent(early, sent.endpoint, sent.life, one, sent.remote, bytes(900)),
        PduSent(
            early, sent.endpoint, sent.life, sent.remote, Header(one, one, 900, bytes(558)).encode()
        ),
        PduArrived(early, sent.endpoint, sent.life, sent.remote, ack),
    ]


@breaks("acks are small")
def _an_ack_is_too_large(record: IpcRecord) -> None:
    ack = HeaderAck(b"1" * 16, 0, bytes(500)).encode()
    record.entries.append(PduSent(1.0, "ann", 1, "bob", ack))


@breaks("retries in time")
def _a_pdu_is_repeated_at_once(record: IpcRecord) -> None:
    first = passes(record, farewell(record))[0]
    after(record, first, replace(first))


@breaks("retries in time")
def _a_pdu_is_not_repeated(record: IpcRecord) -> None:
    last(record, IpcEnded).time += 0.5


@breaks("held backoff")
def _a_receiver_that_has_the_message_is_asked_soon(record: IpcRecord) -> None:
    sent = farewell(record)
    final = passes(record, sent)[-1]
    sequence = int.from_bytes(final.pdu[38:42], "big")
    notice = DataAck(sent.message, sequence + 1).encode()
    arrived = PduArrived(final.time, sent.endpoint, sent.life, sent.remote, notice)
    after(record, final, arrived, replace(final, time=final.time + 0.1))


@breaks("ack timeout as configured")
def _a_send_is_given_up_soon(record: IpcRecord) -> None:
    last(record, IpcEnded).code = Code.SEND_TIMEOUT


@breaks("ack timeout as configured")
def _a_send_is_given_up_late(record: IpcRecord) -> None:
    last(record, IpcEnded).time += 1.5


@breaks("ack timeout as configured")
def _a_message_waits_too_long(record: IpcRecord) -> None:
    farewell(record).time -= 1.5


@breaks("no idle queueing")
def _a_message_waits_for_its_turn_alone(record: IpcRecord) -> None:
    farewell(record).time -= 0.1


@breaks("owner ids are fresh")
def _an_id_is_trusted_for_long(record: IpcRecord) -> None:
    first, second = passes(record, farewell(record))[:2]
    first.pdu = first.pdu[:22] + second.pdu[22:38] + first.pdu[38:]


@breaks("owner ids are fresh")
def _an_id_is_trusted_after_an_error(record: IpcRecord) -> None:
    _an_id_is_trusted_for_long(record)
    sent = farewell(record)
    at = record.entries.index(sent)
    heard = HeaderAck(b"1" * 16).encode()
    record.entries[at:at] = [
        PduArrived(sent.time - 0.2, sent.endpoint, sent.life, sent.remote, heard),
        RemoteFailed(sent.time - 0.1, sent.endpoint, sent.life, sent.remote),
    ]


@breaks("wrong ids are corrected")
def _a_wrong_id_is_kept(record: IpcRecord) -> None:
    second = passes(record, farewell(record))[1]
    second.pdu = second.pdu[:22] + b"?" * 16 + second.pdu[38:]


@pytest.mark.parametrize(
    ("name", "doctor"), DOCTORS, ids=[doctor.__name__.strip("_") for _, doctor in DOCTORS]
)
def test_a_checker_finds_the_violation(name: str, doctor: Doctor) -> None:
    record = clean()
    doctor(record)
    assert name in {violation.checker for violation in check(record)}


def test_every_checker_has_a_case() -> None:
    assert {name for name, _ in DOCTORS} == set(CHECKERS)


def test_a_violation_names_the_message_and_the_endpoints() -> None:
    record = clean()
    took = last(record, IpcTaken)
    took.payload += b"!"
    (violation,) = check(record)
    assert took.message[:3].hex() in str(violation)
    assert f"to {took.endpoint}" in str(violation)
