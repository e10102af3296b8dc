"""One outgoing transfer."""

import pytest

from aqueduct.ipc.core.outgoing import (
    MAX_CORRECTIONS,
    TRANSITIONS,
    OutgoingInput,
    OutgoingState,
    OutgoingTransfer,
)
from aqueduct.ipc.core.pdu import Code, Data, Header, decode
from aqueduct.protocol.timers import NEVER
from tests.ipc.cores import ID, THEM, WRONG

OWNER = b"ABCDEFGH12345678"
RENEWED = b"ABCDEFGHabcdefgh"
SUCCESSOR = b"abcdefgh12345678"
FRESH = b"another message."

woken: list[float] = []


def outgoing(payload: bytes, *, piece: int = 4, guessed: bool = False) -> OutgoingTransfer:
    message = OutgoingTransfer(ID, THEM, payload, piece, 5.0, lambda _, now: woken.append(now))
    message.start(WRONG if guessed else OWNER, guessed, piece, 5.0)
    return message


def pdu(message: OutgoingTransfer) -> object:
    head, data = message.current()
    return decode(head + data)


@pytest.mark.parametrize(
    ("payload", "pieces"),
    [
        (b"", [b""]),
        (b"abcd", [b"abcd"]),
        (b"abcde", [b"abcd", b"e"]),
        (b"abcdefgh", [b"abcd", b"efgh"]),
        (b"abcdefghi", [b"abcd", b"efgh", b"i"]),
    ],
)
def test_a_message_is_split_into_header_and_data(payload: bytes, pieces: list[bytes]) -> None:
    """IPC-SEND-2, and IPC-SEND-12: the last ack is the end."""
    message = outgoing(payload)
    assert pdu(message) == Header(ID, OWNER, len(payload), pieces[0])
    for number, piece in enumerate(pieces[1:], 1):
        assert message.current_size == len(pieces[number - 1])
        assert not message.advance(9.0)
        assert message.state is OutgoingState.DATA
        assert pdu(message) == Data(ID, OWNER, number, piece)
    assert message.advance(9.0)
    assert message.state is OutgoingState.DELIVERED
    assert message.ended
    assert message.payload == b""


def test_an_ack_resets_the_deadline_and_the_attempts() -> None:
    """IPC-SEND-12."""
    message = outgoing(b"abcdefgh")
    message.current()
    message.current()
    message.retry_at = 1.0
    assert message.attempts == 2
    message.advance(9.0)
    assert (message.deadline, message.retry_at, message.attempts) == (9.0, NEVER, 0)


def test_a_message_is_exposed_once_its_last_pdu_was_sent() -> None:
    """IPC-ID-4."""
    message = outgoing(b"abcdefgh")
    message.current()
    assert not message.exposed
    message.advance(9.0)
    assert not message.exposed
    message.current()
    assert message.exposed


def test_a_message_to_a_random_id_is_not_exposed() -> None:
    """IPC-ID-4, and IPC-ID-3: no endpoint owns a random id."""
    message = outgoing(b"abcd", guessed=True)
    message.current()
    assert not message.exposed
    assert message.redirect(OWNER)
    message.current()
    assert message.exposed


def test_an_exposed_message_follows_only_the_same_incarnation() -> None:
    """IPC-ID-4."""
    message = outgoing(b"abcd")
    message.current()
    assert not message.redirect(SUCCESSOR)
    assert message.destination == OWNER
    assert message.redirect(RENEWED)
    assert pdu(message) == Header(ID, RENEWED, 4, b"abcd")


def test_a_message_that_is_not_exposed_follows_any_owner() -> None:
    """IPC-ID-4."""
    message = outgoing(b"abcdefgh")
    message.current()
    assert message.redirect(SUCCESSOR)
    assert pdu(message) == Header(ID, SUCCESSOR, 8, b"abcd")


def test_a_message_is_refragmented_under_another_id() -> None:
    """IPC-SEND-10: answers to the former HEADER no longer match."""
    message = outgoing(b"abcdefgh")
    assert message.refragment(3, FRESH)
    assert pdu(message) == Header(FRESH, OWNER, 8, b"abc")
    message.advance(9.0)
    assert pdu(message) == Data(FRESH, OWNER, 1, b"def")
    assert [decode(each) for each in message.abort()] == [Data(FRESH, OWNER, 1)]
    assert message.message_id == ID


def test_an_exposed_message_is_refragmented_once_and_keeps_its_id() -> None:
    """IPC-SEND-10."""
    message = outgoing(b"abcd")
    message.current()
    assert message.refragment(3, FRESH)
    assert pdu(message) == Header(ID, OWNER, 4, b"abc")
    assert not message.refragment(2, FRESH)


def test_only_the_first_corrections_are_retransmitted_at_once() -> None:
    """IPC-SEND-16."""
    message = outgoing(b"abcdefgh")
    hurried = 0
    for number in range(10):
        message.redirect(bytes((number,)) * 16)
        hurried += message.may_retransmit_now
    assert hurried == MAX_CORRECTIONS == 4


def test_a_transfer_at_data_is_aborted_by_an_empty_data() -> None:
    """IPC-SEND-14."""
    message = outgoing(b"abcdefghi")
    message.advance(9.0)
    message.advance(9.0)
    assert [decode(each) for each in message.abort()] == [Data(ID, OWNER, 2)]


def test_a_transfer_at_header_is_aborted_by_an_empty_header_and_data() -> None:
    """IPC-SEND-15."""
    message = outgoing(b"abc")
    assert [decode(each) for each in message.abort()] == [Header(ID, OWNER, 3), Data(ID, OWNER, 1)]


def test_no_pdu_aborts_an_empty_message() -> None:
    """IPC-SEND-15: a HEADER without data would be the message."""
    assert outgoing(b"").abort() == []


def test_every_failure_has_its_code() -> None:
    message = outgoing(b"a")
    message.refuse(3)
    assert (message.state, message.code) == (OutgoingState.FAILED, 3)
    message = outgoing(b"a")
    message.time_out()
    assert (message.state, message.code) == (OutgoingState.FAILED, Code.SEND_TIMEOUT)
    message = outgoing(b"a")
    message.reset(Code.SHUTDOWN)
    assert (message.state, message.code) == (OutgoingState.FAILED, Code.SHUTDOWN)
    with pytest.raises(KeyError):
        message.time_out()


def test_a_timer_wakes_the_transfer() -> None:
    outgoing(b"").handle_timer(4.5)
    assert woken.pop() == 4.5


def test_every_state_is_reachable_and_final_states_have_no_exit() -> None:
    assert {state for state, _ in TRANSITIONS} == {
        OutgoingState.WAITING,
        OutgoingState.HEADER,
        OutgoingState.DATA,
    }
    assert {*TRANSITIONS.values(), OutgoingState.WAITING} == set(OutgoingState)
    assert {cause for _, cause in TRANSITIONS} == set(OutgoingInput)
