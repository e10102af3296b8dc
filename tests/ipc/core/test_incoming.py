"""One incoming transfer."""

import tracemalloc

import pytest

from aqueduct.ipc.core.incoming import (
    TRANSITIONS,
    IncomingInput,
    IncomingState,
    IncomingTransfer,
    RemoteAccount,
)
from aqueduct.ipc.core.pdu import DataAck, HeaderAck
from aqueduct.protocol.timers import NEVER
from tests.ipc.cores import ID, THEM, WRONG

woken: list[float] = []


def incoming(length: int) -> IncomingTransfer:
    return IncomingTransfer(
        ID, THEM, WRONG, length, 470, RemoteAccount(), 0.0, lambda _, now: woken.append(now)
    )


def test_pieces_are_joined_in_order() -> None:
    message = incoming(5)
    seen = [(message.add(each), message.state) for each in (b"ab", b"cd", b"e")]
    assert seen == [
        (False, IncomingState.RECEIVING),
        (False, IncomingState.RECEIVING),
        (True, IncomingState.WHOLE),
    ]
    assert message.payload() == b"abcde"


def test_a_message_in_one_piece_is_not_copied() -> None:
    message = incoming(1000)
    data = bytes(1000)
    assert message.add(data)
    assert message.payload() is data


@pytest.mark.parametrize("sizes", [[2] * 5_000, [2, 5_000, 2, 2, 5_000], [5_000, 2], [1, 1]])
def test_small_pieces_are_joined_on_arrival(sizes: list[int]) -> None:
    data = bytes(range(256)) * 50
    message = incoming(sum(sizes))
    at = 0
    for size in sizes:
        message.add(data[at : at + size])
        at += size
    assert message.payload() == data[:at]


def test_small_pieces_take_little_more_memory_than_their_bytes() -> None:
    message = incoming(10**6)
    tracemalloc.start()
    for at in range(50_000):
        message.add(b"%02d" % (at % 100))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3 * 100_000


def test_an_empty_message_is_complete_at_once() -> None:
    """IPC-RECV-4."""
    message = incoming(0)
    assert message.add(b"")
    assert message.payload() == b""


@pytest.mark.parametrize("pieces", [[b"abcdef"], [b"ab", b"cdef"], [b"", b"abc", b"defghi"]])
def test_data_beyond_the_length_is_cut_off(pieces: list[bytes]) -> None:
    """IPC-RECV-1."""
    message = incoming(4)
    assert [message.add(each) for each in pieces][-1]
    assert message.payload() == b"abcd"


def test_the_ack_names_the_last_piece() -> None:
    """IPC-RECV-7."""
    message = incoming(9)
    message.add(b"a")
    assert message.last_ack() == HeaderAck(ID).encode()
    message.add(b"b")
    assert message.last_ack() == DataAck(ID, 1).encode()
    message.add(b"c")
    assert message.last_ack(1) == DataAck(ID, 2, 1).encode()


def test_an_ended_transfer_releases_its_pieces() -> None:
    for end in (IncomingTransfer.abort, IncomingTransfer.time_out, IncomingTransfer.reset):
        message = incoming(9)
        message.add(b"a")
        message.deadline = 3.0
        end(message)
        assert message.state is IncomingState.ABORTED
        assert message.deadline == NEVER
        assert message.payload() == b""


def test_a_message_is_taken_or_refused_once() -> None:
    for end, state in (
        (IncomingTransfer.take, IncomingState.PROCESSED),
        (IncomingTransfer.refuse, IncomingState.ABORTED),
    ):
        message = incoming(0)
        message.add(b"")
        end(message)
        assert message.state is state
        with pytest.raises(KeyError):
            message.take()


def test_a_timer_wakes_the_transfer() -> None:
    incoming(1).handle_timer(4.5)
    assert woken.pop() == 4.5


def test_every_state_is_reachable_and_final_states_have_no_exit() -> None:
    assert {state for state, _ in TRANSITIONS} == {
        IncomingState.BEGUN,
        IncomingState.RECEIVING,
        IncomingState.WHOLE,
    }
    assert {*TRANSITIONS.values(), IncomingState.BEGUN} == set(IncomingState)
    assert {cause for _, cause in TRANSITIONS} == set(IncomingInput)
