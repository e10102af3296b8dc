"""A hostile peer that starts messages and never finishes them, to lock out other senders.

It announces messages of the largest size, sends a byte of each from time to time, and uses several
remote addresses. An endpoint must hold only what has arrived, abort slow transfers, and keep room
for other remotes.
"""

from __future__ import annotations

from random import Random

from aqueduct.errors import RemoteProtocolError
from aqueduct.ipc.core.pdu import ID_SIZE, Code, Data, Header, HeaderAck, decode, decode_owner
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.ipc.network import DatagramNetwork
from aqueduct.testing.ipc.peer import Peer

NAMES = tuple(f"hoarder {number}" for number in range(6))
AT_ONCE = 3
"""Maximum messages started per turn."""
MANY = 100
KEPT = 24
"""Messages that it continues at a time."""


class Hoarder:
    """Occupies as much of an endpoint's budget as it can, with few bytes."""

    def __init__(
        self,
        rate: float,
        unit: float,
        random: Random,
        clock: VirtualClock,
        network: DatagramNetwork,
    ) -> None:
        self.begins = True
        """Whether it starts new messages; it continues those that it started."""
        self._pause = unit / rate if rate else 0.0
        self._random = random
        self._clock = clock
        self._network = network
        self._peers: list[Peer] = []
        # By message id: for whom and from whom, the owner id once known, and the next number.
        self._messages: dict[bytes, tuple[Peer, str, bytes, int]] = {}
        for name in NAMES:
            network.receivers[name] = self._receive

    def start(self, peers: list[Peer]) -> None:
        """Start to attack the endpoints that have high limits and demand a minimum rate."""
        self._peers = [
            peer
            for peer in peers
            if min(peer.config.max_processed, peer.config.max_receives, peer.config.min_rate) > MANY
        ]
        if self._pause and self._peers:
            self._clock.after(self._pause, self._turn, None)

    def _turn(self, _: object) -> None:
        random = self._random
        for _ in range(random.randint(1, AT_ONCE) if self.begins else 0):
            peer, name = random.choice(self._peers), random.choice(NAMES)
            message = random.randbytes(ID_SIZE)
            self._messages[message] = peer, name, b"", 0
            probe = Header(message, random.randbytes(ID_SIZE), peer.config.max_message)
            self._network.carry(name, peer.name, probe.encode())
        for message in list(self._messages)[:-KEPT]:
            del self._messages[message]
        for message, (peer, name, owner, number) in self._messages.items():
            if number:
                drip = Data(message, owner, number, b"x").encode()
                self._network.carry(name, peer.name, drip)
        self._clock.after(self._pause, self._turn, None)

    def _receive(self, source: str, datagram: bytes) -> None:
        try:
            ack = decode(datagram)
        except RemoteProtocolError:
            return
        if isinstance(ack, Header | Data):
            return
        known = self._messages.get(ack.message_id)
        if known is None:
            return
        peer, name, owner, number = known
        if not number and isinstance(ack, HeaderAck) and ack.code == Code.INVALID_DESTINATION:
            told = decode_owner(ack.payload)
            if told is not None and told != owner:
                self._messages[ack.message_id] = peer, name, told, 0
                header = Header(ack.message_id, told, peer.config.max_message, b"x")
                self._network.carry(name, source, header.encode())
        elif ack.code != Code.SUCCESS:
            del self._messages[ack.message_id]
        elif number == (0 if isinstance(ack, HeaderAck) else ack.sequence):
            self._messages[ack.message_id] = peer, name, owner, number + 1
