"""Every limit and delay of a ScalableIPC endpoint, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from aqueduct.ipc.core.pdu import MAX_INT32, OVERHEAD

KIB = 1024
MIB = 1024 * KIB

MIN_PDU = 512
"""What every endpoint takes (IPC-CONF-1)."""
MIN_MESSAGE = 64 * KIB
"""What every endpoint takes (IPC-CONF-1)."""
LONGEST = 1e9
"""The most seconds that a clock of an event loop is asked to count."""


@dataclass(frozen=True)
class Config:
    """How an endpoint behaves; times are seconds.

    Nothing of this is negotiated (IPC-CONF-3). Endpoints that talk to each other should share the
    two timeouts: that a message is never taken twice rests on the one's ``receive_timeout`` being
    no shorter than the other's ``ack_timeout`` (IPC-CONF-2).
    """

    max_message: int = 16 * MIB
    """The largest message taken; at least 64 KiB. A larger thing is better sent in parts."""

    max_pdu: int = 0
    """The largest PDU sent or taken; at least 512, 0 for what suits the transport. A message costs
    a round trip a PDU, so it is as large as the path allows."""

    owner_id_lifetime: float = 6.0
    """After this the endpoint takes a new owner id, and forgets what was processed before; at least
    0.1. Up to ``receive_timeout`` and twice this later, a processed id is still remembered, which
    bounds the messages received in that time by ``max_processed``."""

    receive_timeout: float = 6.0
    """How long a transfer may stand still before the receiver gives it up, and the least time that
    a processed message is remembered."""

    ack_timeout: float = 5.0
    """How long the sender tries again without an answer before it gives a message up."""

    min_backoff: float = 0.05
    """The least time before a PDU is sent again: far above a round trip on a busy host."""

    max_backoff: float = 0.2
    """The most: with a fifth of all PDUs lost, twenty tries fit the ack timeout."""

    held_backoff: float = 1.0
    """The least time before a receiver that has all of a message, and waits for its application to
    take it, is asked again; the ack comes by itself unless it is lost."""

    id_trust: float = 1.0
    """How long after an answer a remote's owner id is used without asking. Within it, a message
    takes one round trip, and a restart of the remote makes the messages under way fail; after it, a
    message takes two, and survives a restart. Over tls:// it is an hour whatever is set here: while
    a connection is up its peer is the same, and once it is lost the id is asked for."""

    window: int = 0
    """The most bytes under way to one remote, past which sends wait; 0 for what it can take."""

    max_sends: int = 16_384
    """Messages being sent at once; one more waits until another has ended."""

    max_remotes: int = 4_096
    """Remotes of which something is remembered while nothing is under way to them."""

    min_rate: int = 1_024
    """Minimum bytes per second of a transfer, after its first ``receive_timeout``; a slower one is
    aborted. One PDU of the smallest size per half second is enough, so a path with heavy loss
    passes, but single bytes do not keep a transfer alive."""

    max_receives: int = 16_384
    """Messages that have begun to arrive and were not taken; above that, senders must retry. One
    remote may hold as many as it leaves free: at most half."""

    max_received: int = 64 * MIB
    """The same in bytes that have arrived; announced lengths do not count. With at least twice
    ``max_message``, one large message can arrive regardless of other transfers."""

    max_processed: int = 1_000_000
    """Processed message ids remembered, about 120 bytes each; past it, senders must try again. With
    the times above they are remembered for up to 18 seconds, so that a million allows for more than
    50,000 messages a second."""

    def __post_init__(self) -> None:
        """Refuse what the protocol does not allow, or what cannot work."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (int, "int"):
                if isinstance(value, bool) or not isinstance(value, int):
                    raise TypeError(f"{field.name} is a whole number, not {value!r}")
            elif isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{field.name} is a number of seconds, not {value!r}")
            elif not math.isfinite(value) or value > LONGEST:
                rule = f"{field.name} is at most {LONGEST:g} seconds"
                raise ValueError(f"this configuration cannot work: {rule} ({self})")
        checks = (
            (MIN_MESSAGE <= self.max_message <= MAX_INT32, "max_message is from 64 KiB to 2 GiB"),
            (self.max_pdu == 0 or self.max_pdu >= MIN_PDU, "max_pdu is at least 512"),
            (self.owner_id_lifetime >= 0.1, "owner_id_lifetime is at least 0.1"),
            (self.ack_timeout > 0, "ack_timeout is more than 0"),
            (
                self.receive_timeout >= self.ack_timeout,
                "receive_timeout is no less than ack_timeout",
            ),
            (0 <= self.min_backoff <= self.max_backoff, "0 <= min_backoff <= max_backoff"),
            (self.max_backoff > 0, "max_backoff is more than 0"),
            (self.held_backoff > 0, "held_backoff is more than 0"),
            (self.id_trust >= 0, "id_trust is 0 or more"),
            (self.window >= 0, "window is 0 or more"),
            (self.max_sends >= 1, "max_sends is at least 1"),
            (self.max_remotes >= 1, "max_remotes is at least 1"),
            (self.min_rate >= 0, "min_rate is 0 or more"),
            (self.max_receives >= 1, "max_receives is at least 1"),
            (self.max_received >= self.max_message, "max_received is no less than max_message"),
            (self.max_processed >= 1, "max_processed is at least 1"),
        )
        for holds, rule in checks:
            if not holds:
                raise ValueError(f"this configuration cannot work: {rule} ({self})")

    @property
    def max_data(self) -> int:
        """The most data in one PDU."""
        assert self.max_pdu, "the transport chooses max_pdu where the user does not"
        return self.max_pdu - OVERHEAD
