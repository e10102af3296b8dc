"""The peer's current address, which may change any number of times.

Theory of operation. qh3 can follow a peer, but it keeps at most four paths in the life of a
connection, deletes none, does not return to an earlier one, and after each change loses the timer
for packets in flight. The engine therefore passes an address to qh3 only if it is on a new host,
and at most three times. Otherwise it passes the last address that qh3 knows, and rewrites the
destination of qh3's packets to the peer's current address.

An authentic packet shows that the peer sent it, not that the peer gets what is sent to the address
it seems to come from. So a new address is validated before it is used: by qh3's PATH_CHALLENGE, or,
when qh3 does not get the address, by `AddressValidation`. Until then packets go to the previous
address. An address under `AddressValidation` also gets copies, within the amplification limit of
three times what came from it; another port of the same host (NAT rebinding) gets copies of
everything for a while, because the host is validated.

qh3 never abandons a validation, and sends nothing at all while the address under validation has
reached its amplification limit: one packet that an attacker forwards from an address of its choice
would end the connection. So this module abandons the validation as soon as the peer sends from
another address. The address is then only an alias: packets of qh3 to it go to the peer's current
address, packets of the peer are passed to qh3 as if from it, and so qh3's validation succeeds.
"""

from __future__ import annotations

from collections import OrderedDict

from aqueduct.transport.address import Address

MAX_CHECKS = 3
"""Addresses that qh3 can validate, besides the first."""
CHECK_FOR = 3.0
"""Seconds after which an answer to qh3's challenge is no longer expected."""
MAX_VALIDATED = 64
"""Validated addresses to remember; the oldest is evicted."""
AMPLIFICATION = 3
"""Amplification limit: bytes sent per byte received, before validation (RFC 9000, 8)."""
CHOICE = 4
"""Pings in a group, of which one is sent."""
ACKS_TO_VALIDATE = 10
"""Acks that validate an address: guessing them has a probability of one in a million."""
PING_SIZE = 48
"""Largest packet with only a ping and an ack, in bytes."""
MAX_UNANSWERED = 2 * ACKS_TO_VALIDATE
"""Pings in flight or lost at a time."""
MAX_PINGS = 4 * CHOICE * MAX_UNANSWERED
"""Pings that a validation remembers."""
RETRY = 0.1
"""Seconds after which a validation without progress sends another ping; the initial backoff."""
MAX_RETRIES = 12
"""Retries before a validation waits for the next packet of the peer."""
COPY_FOR = 2.0
"""Seconds for which another port of the same host gets copies of everything."""
SETTLE = 0.25
"""Seconds for which packets from the previous address do not switch back to it: they may have been
in flight."""


class PeerAddresses:
    """The addresses of one peer."""

    def __init__(self, name: Address) -> None:
        self.name = name
        """The peer's address as qh3 knows it."""
        self.at = name
        """The peer's current address."""
        self.checking: Address | None = None
        """The address that qh3 validates now."""
        self._is_given_up = False
        """Whether that is only an alias now: the peer has sent from another address."""
        self._give_up_from = self._check_until = 0.0
        self._checks = 0
        self._validated: OrderedDict[Address, None] = OrderedDict({name: None})
        self._hosts = {name[0]}
        """Hosts that were passed to qh3."""
        self._before = name
        self._settled_at = 0.0

    def name_for(self, address: Address, now: float) -> Address:
        """Return the source address to pass to qh3 for a packet."""
        checking = self.checking
        if checking is not None:
            is_there = self._is_given_up or address == checking or now >= self._give_up_from
            return checking if is_there else self.name
        if address in self._validated or address[0] in self._hosts or self._checks >= MAX_CHECKS:
            return self.name
        return address

    def record_packet(self, address: Address, now: float) -> bool:
        """Record an authentic packet; return False if its address needs an `AddressValidation`."""
        checking = self.checking
        if checking is not None and not self._is_given_up:
            if address == checking:
                return True
            self._is_given_up = now >= self._give_up_from
        if address in self._validated:
            if address != self.at and (address != self._before or now >= self._settled_at):
                self._move(address, now)
            return True
        if checking is not None or address[0] in self._hosts or self._checks >= MAX_CHECKS:
            return False
        self._checks += 1
        self._hosts.add(address[0])
        self.checking, self._is_given_up = address, False
        self._give_up_from, self._check_until = now + SETTLE, now + CHECK_FOR
        return True

    def is_checking(self, now: float) -> bool:
        """Return whether qh3 waits for a PATH_RESPONSE."""
        return self.checking is not None and now < self._check_until

    def record_response(self, now: float) -> None:
        """Record that qh3 has validated the address, and sends to it from now on."""
        assert self.checking is not None
        self.name, self.checking = self.checking, None
        if not self._is_given_up:
            self.validated(self.name, now)

    def validated(self, address: Address, now: float) -> None:
        """Record that an address is validated."""
        self._validated[address] = None
        if len(self._validated) > MAX_VALIDATED:
            self._validated.popitem(last=False)
        self._move(address, now)

    def destination(self, name: Address) -> Address:
        """Return the destination of a packet that qh3 sends to an address."""
        if name == self.name or (self._is_given_up and name == self.checking):
            return self.at
        return name

    def _move(self, address: Address, now: float) -> None:
        self._before, self.at = self.at, address
        self._settled_at = now + SETTLE
        self._validated.move_to_end(address)


class AddressValidation:
    """Validation of one address: the peer receives packets that are sent to it.

    Of each group of pings one, chosen at random, is sent to the address; the others are discarded.
    A peer that receives them acks those that were sent. A peer that does not must guess, and is
    detected by the first ack of a discarded ping (RFC 9000, 21.4, skips packet numbers for this).
    PATH_CHALLENGE serves the same purpose, but qh3 supports it for four paths only.
    """

    def __init__(self, address: Address, before: Address, now: float) -> None:
        self.address = address
        self._copy_until = now + COPY_FOR if address[0] == before[0] else now
        self.retry_at = now + RETRY
        """When to send another ping without progress."""
        self._allowance = 0
        self._unanswered = self._retries = 0
        self._missing = ACKS_TO_VALIDATE
        self._pings: OrderedDict[int, bool] = OrderedDict()
        """Unacknowledged pings, and whether they were sent."""

    def received(self, size: int, now: float) -> None:
        """Record authentic packets from the address."""
        self._allowance += AMPLIFICATION * size
        self._retries = 0
        self.retry_at = now + RETRY

    def retry(self, now: float) -> None:
        """Allow another ping after a timeout, and back off."""
        self._retries += 1
        self._unanswered = min(self._unanswered, MAX_UNANSWERED - 1)
        late = RETRY * 2 ** min(self._retries, 6)
        self.retry_at = now + late if self._retries < MAX_RETRIES else float("inf")

    def may_send(self) -> bool:
        """Return whether another ping may be sent; the last allowed one is kept for a retry."""
        kept = 0 if self._retries else PING_SIZE
        return self._unanswered < MAX_UNANSWERED and self._allowance >= PING_SIZE + kept

    def sent(self, uid: int, size: int) -> None:
        """Record a ping that was sent."""
        self._unanswered += 1
        self._allowance -= size
        self._remember(uid, True)

    def may_copy(self, size: int, now: float) -> bool:
        """Return whether a packet to the previous address may be copied to this one."""
        if now < self._copy_until:
            return True
        if self._allowance < size + MAX_UNANSWERED * PING_SIZE:
            return False
        self._allowance -= size
        return True

    def dropped(self, uid: int) -> None:
        """Record a ping that was discarded."""
        self._remember(uid, False)

    def acked(self, uid: int) -> bool | None:
        """Record an acked ping; return True if it validates the address, False for a guess."""
        was_sent = self._pings.pop(uid, None)
        if was_sent is None:
            return None
        if not was_sent:
            return False
        self._unanswered -= 1
        self._missing -= 1
        return True if self._missing <= 0 else None

    def _remember(self, uid: int, was_sent: bool) -> None:
        self._pings[uid] = was_sent
        if len(self._pings) > MAX_PINGS:
            self._pings.popitem(last=False)
