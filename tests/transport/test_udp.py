"""Batched UDP: runs of packets in one call, with and without kernel support."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterator

import pytest

from aqueduct.transport.address import Address
from aqueduct.transport.udp import UdpSocket

PLAIN, BATCHED = False, True


@pytest.fixture(params=[PLAIN, BATCHED], ids=["plain", "batched"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[UdpSocket, UdpSocket, Address]]:
    """A sender, a receiver and its address."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    sender, receiver = (UdpSocket(each) for each in sockets)
    if request.param is BATCHED and not (sender.gso and receiver.gro):
        pytest.skip("the kernel has no GSO or GRO")
    if request.param is PLAIN:
        sender.gso = receiver.gro = False
        # Undo what the constructor asked for: the kernel must not join packets either.
        sockets[1].setsockopt(socket.IPPROTO_UDP, 104, 0)
    yield sender, receiver, sockets[1].getsockname()
    sender.close()
    receiver.close()


def receive_all(receiver: UdpSocket) -> list[bytes]:
    """Return the packets that have arrived, split."""
    packets = []
    while select.select([receiver.socket], [], [], 0.1)[0]:
        received = receiver.receive()
        if received is None:
            break
        data, segment, _ = received
        packets += [data[at : at + segment] for at in range(0, len(data), segment)]
    return packets


def check(pair: tuple[UdpSocket, UdpSocket, Address], sizes: list[int]) -> None:
    sender, receiver, address = pair
    packets = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    assert sender.send([(packet, address) for packet in packets])
    assert receive_all(receiver) == packets


Three = tuple[UdpSocket, UdpSocket, Address]


def test_equal_packets_arrive_unchanged_and_in_order(pair: Three) -> None:
    check(pair, [1_200] * 100)


def test_a_short_last_packet_ends_a_run(pair: Three) -> None:
    check(pair, [1_200] * 10 + [300])


def test_packets_of_varying_sizes_arrive_unchanged(pair: Three) -> None:
    check(pair, [100, 1_200, 1_200, 40, 40, 1_200, 39, 1_452, 1_452, 1])


def test_large_packets_arrive(pair: Three) -> None:
    check(pair, [16_000] * 9)


def test_a_single_packet_arrives(pair: Three) -> None:
    check(pair, [77])


def test_more_packets_than_one_call_can_take_are_split(pair: Three) -> None:
    check(pair, [500] * 300)


def test_packets_for_several_addresses_arrive_at_each(pair: Three) -> None:
    sender, receiver, address = pair
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        elsewhere = other.getsockname()
        queue = [(b"x" * 100, address if n % 3 else elsewhere) for n in range(30)]
        assert sender.send(queue)
        assert len(receive_all(receiver)) == 20
        other.setblocking(False)
        for _ in range(10):
            assert other.recv(200) == b"x" * 100


def test_the_sender_is_known(pair: Three) -> None:
    sender, receiver, address = pair
    sender.send([(b"hello", address)])
    select.select([receiver.socket], [], [], 1)
    received = receiver.receive()
    assert received is not None
    assert received[2] == sender.socket.getsockname()


def test_receive_returns_none_without_packets(pair: Three) -> None:
    assert pair[1].receive() is None


def test_sending_no_packets_is_a_no_op(pair: Three) -> None:
    assert pair[0].send(())


def test_empty_packets_are_allowed(pair: Three) -> None:
    sender, receiver, address = pair
    sender.send([(b"", address), (b"x", address)])
    assert [packet for packet in receive_all(receiver) if packet] == [b"x"]


class FullSocket:
    """A socket that accepts ``room`` calls and then is full."""

    def __init__(self, room: int, error: type[OSError] = BlockingIOError) -> None:
        self.room = room
        self.error = error
        self.sent: list[bytes] = []
        self.calls = 0

    def sendto(self, data: bytes, address: Address) -> None:
        self.calls += 1
        if self.room <= 0:
            raise self.error
        self.room -= 1
        self.sent.append(data)

    def sendmsg(self, data: list[bytes], control: object, flags: int, address: Address) -> None:
        self.sendto(b"".join(data), address)


def test_packets_that_a_full_socket_rejected_are_sent_first(pair: Three) -> None:
    sender, _, address = pair
    real, full = sender.socket, FullSocket(2)
    sender.socket = full  # type: ignore[assignment]
    sizes = [10, 20, 30, 40]  # each a run of its own
    assert not sender.send([(bytes([size]) * size, address) for size in sizes])
    assert [len(data) for data in full.sent] == [10, 20]
    full.room = 1
    assert not sender.send([(b"z" * 50, address)])  # it waits behind the others
    assert not sender.send_waiting()
    full.room = 10
    assert sender.send_waiting()
    assert [len(data) for data in full.sent] == [10, 20, 30, 40, 50]
    assert sender.send([(b"z" * 60, address)])
    assert len(full.sent) == 6
    assert sender.send_waiting()
    sender.socket = real


def test_many_connections_that_send_through_a_full_socket_take_linear_time(pair: Three) -> None:
    """System calls are counted, and packets that are copied."""
    sender, _, address = pair
    real, full = sender.socket, FullSocket(0)
    sender.socket = full  # type: ignore[assignment]
    connections = 1_000
    for number in range(connections):
        assert not sender.send([(bytes(10 + number), address)])
    assert full.calls == 1
    assert sender.waiting == connections
    for _ in range(connections):
        full.room = 1
        sender.send_waiting()
    assert [len(data) for data in full.sent] == [*range(10, 10 + connections)]
    assert full.calls <= 2 * connections + 1
    sender.socket = real


def test_packets_that_the_network_rejects_are_lost_and_the_rest_is_sent(pair: Three) -> None:
    sender, receiver, address = pair
    too_large = b"x" * 65_508
    assert sender.send([(too_large, address), (b"fine", address)])
    assert sender.error is not None
    assert receive_all(receiver) == [b"fine"]


def test_an_interface_without_batching_gets_single_packets(pair: Three) -> None:
    sender, receiver, address = pair
    real = sender.socket

    class NoBatches:
        def sendmsg(self, *_: object) -> None:
            raise OSError(errno.EIO, "no")

        def sendto(self, data: bytes, to: Address) -> int:
            return real.sendto(data, to)

    sender.socket = NoBatches()  # type: ignore[assignment]
    assert sender.send([(b"x" * 100, address)] * 5)
    sender.socket = real
    assert receive_all(receiver) == [b"x" * 100] * 5
    assert not sender.gso


def test_a_connected_socket_reports_an_unreachable_port() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(address)
    udp = UdpSocket(sock)
    udp.send([(b"anybody?", address)])
    select.select([sock], [], [], 1)
    assert udp.receive() is None
    assert udp.error is not None
    assert udp.error.errno == errno.ECONNREFUSED
    udp.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_both_families_work(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    sockets = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(2)]
    for each in sockets:
        each.bind((host, 0))
    sender, receiver = (UdpSocket(each) for each in sockets)
    address = sockets[1].getsockname()[:2]
    sender.send([(b"x" * 900, address)] * 10)
    assert receive_all(receiver) == [b"x" * 900] * 10
    sender.close()
    receiver.close()
