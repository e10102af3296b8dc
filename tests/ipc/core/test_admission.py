"""The memory budget of incoming messages: arrived bytes count against their remote."""

from __future__ import annotations

from aqueduct.ipc.core.incoming import IncomingTransfer
from aqueduct.ipc.core.pdu import Code, DataAck, HeaderAck
from aqueduct.ipc.core.settings import IpcSettings
from tests.ipc.cores import DATA, ID, Core

FULL = b"x" * DATA
MIB = 1024 * 1024


def number(at: int) -> bytes:
    """Return a message id."""
    return at.to_bytes(16)


def announce(core: Core, count: int, length: int, remote: str = "hoarder") -> int:
    """Start messages with a byte each; return the number accepted."""
    accepted = 0
    for at in range(1, count + 1):
        answer = core.hear(core.header(length, b"x", number(at)), remote=f"{remote} {at}")
        accepted += answer == [HeaderAck(number(at))]
    return accepted


def test_announced_lengths_do_not_consume_the_budget() -> None:
    """IPC-FLOW-2: the bytes of 21 datagrams count, not the gigabytes they announce."""
    core = Core()
    assert announce(core, 21, 16 * MIB) == 21
    core.hear(core.header(5, b"hello"), remote="honest")
    assert core.arrived() == [b"hello"]
    assert core.hear(core.header(2 * DATA, FULL, b"another message."), remote="honest")
    assert core.exchange.leftovers()["bytes received"] == 21 + 5 + DATA


def test_single_bytes_do_not_keep_a_transfer_alive() -> None:
    """IPC-RECV-21."""
    core = Core(owner_id_lifetime=1_000.0)
    core.hear(core.header(MIB, b"x"))
    for sequence in range(1, 4):
        core.wait(1.9)
        assert core.hear(core.data(sequence, b"x")) == [DataAck(ID, sequence)]
    core.wait(0.5)
    assert core.exchange.leftovers() == {}
    assert core.hear(core.data(4, b"x")) == [DataAck(ID, 4, Code.RECEIVE_TIMEOUT)]


def test_a_transfer_at_the_minimum_rate_continues() -> None:
    """IPC-RECV-21."""
    core = Core(owner_id_lifetime=1_000.0)
    payload = b"x" * 300
    core.hear(core.header(300 * 100, payload))
    for sequence in range(1, 99):
        core.wait(0.28)
        assert core.hear(core.data(sequence, payload)) == [DataAck(ID, sequence)]
    core.hear(core.data(99, payload))
    assert core.arrived() == [payload * 100]


def test_one_remote_holds_at_most_half_of_the_messages() -> None:
    """IPC-FLOW-8."""
    core = Core(max_receives=8)
    for at in range(1, 8):
        core.hear(core.header(0, b"", number(at)), remote="greedy")
    assert core.exchange.leftovers()["incoming"] == 4
    for name in ("one", "two"):
        core.hear(core.header(0, b"", name.encode().ljust(16)), remote=name)
    assert core.exchange.leftovers()["incoming"] == 6
    assert core.exchange.statistics.over_limit == 3


def test_one_remote_holds_at_most_half_of_the_bytes() -> None:
    """IPC-FLOW-8; a remote that holds nothing may start any message that fits."""
    core = Core(max_message=65_536, max_received=4 * 65_536, max_pdu=60_000)
    for at in range(1, 20):
        core.hear(core.header(10_000, bytes(10_000), number(at)), remote="greedy")
    assert core.exchange.leftovers()["bytes received"] == 130_000
    core.hear(core.header(50_000, bytes(50_000)), remote="modest")
    assert core.exchange.leftovers()["bytes received"] == 180_000


def test_a_slow_transfer_is_displaced_by_another() -> None:
    """IPC-FLOW-9: it is answered like a transfer that timed out."""
    core = Core(max_receives=4, owner_id_lifetime=1_000.0)
    assert announce(core, 4, MIB) == 4
    newcomer = core.header(2 * DATA, FULL)
    assert core.hear(newcomer) == []
    core.wait(1.6)
    assert core.hear(newcomer) == [HeaderAck(ID)]
    assert core.exchange.statistics.displaced == 1
    late = core.data(1, b"x", number(1))
    assert core.hear(late) == [DataAck(number(1), 1, Code.RECEIVE_TIMEOUT)]


def test_a_transfer_that_keeps_up_is_not_displaced() -> None:
    """IPC-FLOW-9."""
    core = Core(max_receives=1, owner_id_lifetime=1_000.0)
    core.hear(core.header(4 * DATA, FULL), remote="steady")
    for sequence in (1, 2):
        core.wait(1.4)
        core.hear(core.data(sequence, FULL), remote="steady")
        assert core.hear(core.header(0, b"", number(1))) == []
    core.hear(core.data(3, FULL), remote="steady")
    assert core.arrived() == [FULL * 4]


def test_transfers_that_cannot_all_be_held_finish_one_after_the_other() -> None:
    """IPC-FLOW-9: room is reserved for the first, which prevents a deadlock."""
    piece = 65_536 // 16
    core = Core(max_message=65_536, max_received=4 * 65_536, max_pdu=piece + 42)
    count, pieces = 12, 16
    expected = dict.fromkeys(range(1, count + 1), 0)
    taken = 0
    for _ in range(count * pieces):
        for at in list(expected):
            sequence = expected[at]
            pdu = (
                core.data(sequence, bytes(piece), number(at))
                if sequence
                else core.header(65_536, bytes(piece), number(at))
            )
            accepted = core.hear(pdu, remote=f"sender {at % 3}")
            if sequence == pieces - 1 and core.arrived():
                core.take(number(at))
                taken += 1
                del expected[at]
            elif accepted:
                expected[at] += 1
        assert core.exchange.leftovers().get("bytes received", 0) <= 4 * 65_536
        core.wait(0.001)
    assert taken == count
    assert core.exchange.statistics.displaced == 0
    assert core.exchange.leftovers() == {}


def test_making_room_has_a_constant_cost() -> None:
    """A PDU that finds no room examines a few transfers; the next PDU examines the next ones."""
    looked = 0
    original = IncomingTransfer.is_behind

    def counted(self: IncomingTransfer, now: float, timeout: float) -> bool:
        nonlocal looked
        looked += 1
        return original(self, now, timeout)

    core = Core(max_receives=4_000)
    assert announce(core, 4_000, MIB) == 4_000
    IncomingTransfer.is_behind = counted  # type: ignore[method-assign]
    try:
        for at in range(100):
            assert core.hear(core.header(0, b"", number(10_000 + at))) == []
        assert looked <= 100 * 8
        core.wait(1.6)
        looked = 0
        for at in range(100):
            core.hear(core.header(0, b"", number(20_000 + at)), remote=f"honest {at}")
        assert len(core.arrived()) == 100
        assert looked <= 100 * 8
    finally:
        IncomingTransfer.is_behind = original  # type: ignore[method-assign]


def test_remotes_that_hold_nothing_are_forgotten() -> None:
    core = Core(max_remotes=10)
    for at in range(1, 1_001):
        core.hear(core.header(0, b"", number(at)), remote=at)
        core.exchange.take(number(at))
    assert len(core.exchange._receiver._budget._accounts) <= 10


def test_the_default_leaves_room_for_several_of_the_largest_messages() -> None:
    config = IpcSettings()
    assert config.max_received >= 4 * config.max_message
