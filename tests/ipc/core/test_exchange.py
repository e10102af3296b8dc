"""Two endpoints and the network between them, and hostile input to one."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aqueduct.errors import LocalProtocolError
from aqueduct.ipc.core.events import Arrived, Ended
from aqueduct.ipc.core.pdu import Code, Data, DataAck, Header, HeaderAck, Pdu
from tests.ipc.cores import DATA, ID, THEM, WRONG, Core

MALFORMED = [
    b"",
    b"\x03",
    bytes(60),
    HeaderAck(ID, 0, bytes(489)).encode(),
    Header(ID, bytes(16), 0).encode(),
    Data(ID, WRONG, 0).encode(),
    b"\x07" + Header(ID, WRONG, 0).encode()[1:],
]


def exchange_pdus(sender: Core, receiver: Core, loss: Random | None = None) -> int:
    """Carry PDUs both ways until none is left; return their number."""
    count = 0
    while said := [(pdu, receiver) for pdu in sender.said()] + [
        (pdu, sender) for pdu in receiver.said()
    ]:
        for pdu, to in said:
            count += 1
            if loss is None or loss.random() > 0.2:
                to.exchange.handle_pdu(pdu.encode(), THEM, to.now)
        for event in receiver.events():
            assert isinstance(event, Arrived)
            receiver.exchange.take(event.message_id)
    return count


def test_a_first_message_takes_two_round_trips_and_a_second_one() -> None:
    """IPC-ID-3, IPC-SEND-9, IPC-SEND-16."""
    sender, receiver = Core(seed=1), Core(seed=2)
    sender.send(b"hello")
    assert exchange_pdus(sender, receiver) == 4
    assert sender.ended().code == Code.SUCCESS
    sender.send(b"world")
    assert exchange_pdus(sender, receiver) == 2
    assert sender.ended().code == Code.SUCCESS
    assert receiver.exchange.statistics.received == 2


@pytest.mark.parametrize("size", [0, 1, DATA, DATA + 1, 10 * DATA, 10 * DATA + 7])
def test_messages_of_all_sizes_arrive_through_a_network_that_loses(size: int) -> None:
    sender, receiver = Core(seed=1), Core(seed=2)
    loss = Random(size)
    sender.send(Random(1).randbytes(size))
    while not (events := sender.events()):
        exchange_pdus(sender, receiver, loss)
        for core in (sender, receiver):
            core.now += 0.05
            core.exchange.handle_timer(core.now)
    (event,) = events
    assert isinstance(event, Ended)
    assert event.code == Code.SUCCESS
    assert receiver.exchange.statistics.received == 1
    assert sender.exchange.leftovers() == receiver.exchange.leftovers() == {}


def test_malformed_pdus_are_dropped_and_counted() -> None:
    """IPC-PDU-9."""
    core = Core()
    for pdu in MALFORMED:
        core.exchange.handle_pdu(pdu, THEM, core.now)
    assert core.said() == []
    assert core.events() == []
    assert core.exchange.leftovers() == {}
    assert core.exchange.statistics.malformed == len(MALFORMED)
    assert core.exchange.statistics.pdus_received == len(MALFORMED)


def test_a_pdu_that_is_delayed_for_days_is_not_taken_again() -> None:
    """IPC-ID-1, IPC-RECV-2, IPC-RECV-6: its owner id has expired."""
    core = Core()
    header = core.header(5, b"hello")
    core.hear(header)
    core.take()
    core.wait(100_000)
    assert core.exchange.processed == 0
    (answer,) = core.hear(header)
    assert answer == HeaderAck(ID, Code.INVALID_DESTINATION, core.exchange.owner)
    assert len(core.events()) == 1


def test_a_suspended_sender_does_not_cause_a_second_delivery() -> None:
    """IPC-ID-5: a copy of its PDU arrives after the message id has expired."""
    sender, receiver = Core(seed=1), Core(seed=2)
    sender.send(b"")
    exchange_pdus(sender, receiver)
    sender.events()
    sender.send(b"hello")
    (header,) = sender.said()
    receiver.hear(header)
    (arrived,) = receiver.events()
    receiver.take(arrived.message_id)  # and the ack is lost
    receiver.wait(13)
    sender.now = receiver.now
    (answer,) = receiver.hear(header)
    assert isinstance(answer, HeaderAck)
    assert answer.code == Code.INVALID_DESTINATION
    sender.exchange.handle_pdu(answer.encode(), THEM, sender.now)
    exchange_pdus(sender, receiver)
    assert receiver.exchange.statistics.received == 2
    assert sender.ended().code == Code.SEND_TIMEOUT


def test_a_restart_fails_only_messages_that_may_have_been_taken() -> None:
    """IPC-ID-4."""
    sender, before, after = Core(seed=1), Core(seed=2), Core(seed=3)
    sender.send(b"")
    exchange_pdus(sender, before)
    sender.events()
    short, long = sender.send(b"hello"), sender.send(bytes(DATA + 1))
    exchange_pdus(sender, after)
    ended = {each.message_id: each.code for each in sender.events() if isinstance(each, Ended)}
    assert ended == {short: Code.PEER_RESTARTED, long: Code.SUCCESS}
    assert after.exchange.statistics.received == 1


def test_a_pdu_size_below_the_minimum_is_rejected_and_others_apply_at_once() -> None:
    """IPC-CONF-1."""
    core = Core()
    with pytest.raises(LocalProtocolError):
        core.exchange.resize(511)
    core.exchange.resize(1042)
    core.send(bytes(2000))
    assert len(core.said()[0].payload) == 1000


def test_the_next_timer_is_the_earliest_of_all() -> None:
    core = Core(owner_id_lifetime=3)
    assert core.exchange.next_timer() == 3
    core.hear(core.header(2 * DATA, bytes(DATA)))
    assert core.exchange.next_timer() == 3
    core.send(b"hello")
    assert core.exchange.next_timer() < 0.2


# Arbitrary input

IDS = [ID, WRONG, b"a third message.", bytes(16)]
ids = st.sampled_from(IDS)
lengths = st.sampled_from([0, 1, 5, DATA, DATA + 1, 2000, 65_536, 65_537, 2**31 - 1])
data = st.sampled_from([b"", b"x", bytes(DATA), bytes(DATA + 1)])
sequences = st.sampled_from([0, 1, 2, 3, 2**31 - 1])
codes = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 99])
payloads = st.sampled_from([b"", IDS[0], IDS[1], (470).to_bytes(4), (1).to_bytes(4), bytes(600)])

moves = st.one_of(
    st.tuples(st.just("header"), ids, lengths, data),
    st.tuples(st.just("data"), ids, sequences, data),
    st.tuples(st.just("header ack"), st.integers(0, 3), codes, payloads),
    st.tuples(st.just("data ack"), st.integers(0, 3), sequences, codes, payloads),
    st.tuples(st.just("bytes"), st.binary(max_size=60)),
    st.tuples(st.just("flip"), st.integers(0, 60), st.integers(0, 255)),
    st.tuples(st.just("send"), st.sampled_from([0, 5, DATA + 1, 3 * DATA])),
    st.tuples(st.just("take"), ids),
    st.tuples(st.just("refuse"), ids),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.tuples(st.just("change owner")),
    st.tuples(st.just("trouble")),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.1, 1.0, 5.0, 7.0])),
)


class Anything:
    """Applies a list of moves, valid or not, to an endpoint."""

    def __init__(self) -> None:
        self.core = Core(max_message=65_536, max_received=65_536, max_receives=2, max_processed=3)
        self.sent = [ID]
        self.last = b"\0"

    def hear(self, encoded: bytes) -> None:
        self.last = encoded
        self.core.exchange.handle_pdu(encoded, THEM, self.core.now)

    def do(self, move: tuple[object, ...]) -> None:
        core = self.core
        match move:
            case ("header", bytes(message), int(length), bytes(payload)):
                self.hear(core.header(length, payload, message).encode())
            case ("data", bytes(message), int(sequence), bytes(payload)):
                self.hear(core.data(sequence, payload, message).encode())
            case ("header ack", int(index), int(code), bytes(payload)):
                message = self.sent[index % len(self.sent)]
                self.hear(HeaderAck(message, code, payload).encode())
            case ("data ack", int(index), int(sequence), int(code), bytes(payload)):
                message = self.sent[index % len(self.sent)]
                self.hear(DataAck(message, sequence, code, payload).encode())
            case ("bytes", bytes(encoded)):
                self.hear(encoded)
            case ("flip", int(at), int(value)):
                garbled = bytearray(self.last)
                if garbled:
                    garbled[at % len(garbled)] ^= value
                self.hear(bytes(garbled))
            case ("send", int(size)):
                self.sent.insert(0, core.send(bytes(size)))
            case ("take", bytes(message)):
                core.exchange.take(message)
            case ("refuse", bytes(message)):
                core.exchange.refuse(message)
            case ("cancel", int(index)):
                core.exchange.cancel(self.sent[index % len(self.sent)], core.now)
            case ("change owner",):
                core.exchange.change_owner(core.now)
            case ("trouble",):
                core.exchange.handle_transient_error(THEM, "trouble")
            case ("wait", float(seconds)):
                core.now += seconds
                core.exchange.handle_timer(core.now)
            case _:
                raise AssertionError(move)


def check_bounds(core: Core, heard: int) -> None:
    said: list[Pdu] = core.said()
    assert len(said) <= heard
    held = core.exchange.leftovers()
    assert held.get("incoming", 0) <= 2
    assert 0 <= held.get("bytes received", 0) <= 65_536
    assert core.exchange.processed <= 3 + 2


@settings(max_examples=300)
@given(st.lists(moves, max_size=60))
def test_no_sequence_of_inputs_breaks_an_endpoint(
    script: list[tuple[object, ...]],
) -> None:
    """IPC-PDU-9, IPC-FLOW-2, IPC-SEND-17: no exception, bounded memory, one result per send."""
    anything = Anything()
    core = anything.core
    arrived: list[bytes] = []
    ended: list[bytes] = []
    for move in script:
        anything.do(move)
        # An input causes at most two PDUs per open send, and one answer.
        check_bounds(core, 1 + 2 * (1 + len(anything.sent)))
        for event in core.events():
            (arrived if isinstance(event, Arrived) else ended).append(event.message_id)
    core.wait(30)
    ended += [each.message_id for each in core.events()]
    for message_id in set(arrived):
        core.exchange.take(message_id)
    core.wait(30)
    assert sorted(ended) == sorted(each for each in anything.sent if each != ID)
    assert core.exchange.leftovers() == {}
    assert core.exchange.processed == 0
