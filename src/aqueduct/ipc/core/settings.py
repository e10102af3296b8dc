"""Every limit and delay of a ScalableIPC endpoint, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from aqueduct.ipc.core.pdu import MAX_INT32, OVERHEAD
from aqueduct.settings import KIB, MIB, declare, seconds, whole

MIN_PDU = 512
"""What every endpoint takes (IPC-CONF-1)."""
MIN_MESSAGE = 64 * KIB
"""What every endpoint takes (IPC-CONF-1)."""


@dataclass(frozen=True)
class IpcSettings:
    """How an endpoint behaves.

    Nothing of this is negotiated (IPC-CONF-3). Endpoints that talk to each other should have the
    same two timeouts: a message is processed at most once only if the receiver's
    ``receive_timeout`` is no shorter than the sender's ``ack_timeout`` (IPC-CONF-2).
    """

    max_message: int = field(
        default=16 * MIB,
        metadata=whole(
            "bytes",
            "The largest message taken. Send larger content in parts.",
            least=MIN_MESSAGE,
            most=MAX_INT32,
        ),
    )
    max_pdu: int = field(
        default=0,
        metadata=whole(
            "bytes",
            "The largest PDU sent or taken. A message takes one round trip per PDU, so it is as "
            "large as the path allows.",
            least=MIN_PDU,
            zero="what the transport carries: 60,000 bytes over UDP, 256 KiB over TLS",
        ),
    )
    owner_id_lifetime: float = field(
        default=6.0,
        metadata=seconds(
            "The endpoint takes a new owner id after this time, and forgets what was processed "
            "before. A processed id is remembered for up to `receive_timeout` and twice this "
            "time, which bounds the messages received in that time by `max_processed`.",
            least=0.1,
        ),
    )
    receive_timeout: float = field(
        default=6.0,
        metadata=seconds(
            "The receiver aborts a transfer that makes no progress for this long, and remembers a "
            "processed message for at least this long.",
            least="ack_timeout",
        ),
    )
    ack_timeout: float = field(
        default=5.0,
        metadata=seconds(
            "The sender retransmits for this long without an answer before it gives up.", above=0
        ),
    )
    min_backoff: float = field(
        default=0.05,
        metadata=seconds(
            "The shortest time before a retransmission: far above a round trip on a busy host.",
            least=0,
            most="max_backoff",
        ),
    )
    max_backoff: float = field(
        default=0.2,
        metadata=seconds(
            "The longest such time: with a fifth of all PDUs lost, twenty attempts fit into the "
            "ack timeout.",
            above=0,
        ),
    )
    held_backoff: float = field(
        default=1.0,
        metadata=seconds(
            "The shortest time before a sender asks again about a message that the receiver holds "
            "for its application; the ack comes by itself unless it is lost.",
            above=0,
        ),
    )
    id_trust: float = field(
        default=1.0,
        metadata=seconds(
            "How long after an answer a remote's owner id is used without asking. Within it, a "
            "message takes one round trip, and messages in flight fail if the remote restarts; "
            "after it, a message takes two, and survives a restart. Over tls:// it is always an "
            "hour: the peer of a connection stays the same, and a lost connection makes the "
            "sender ask."
        ),
    )
    window: int = field(
        default=0,
        metadata=whole(
            "bytes",
            "The most bytes in flight to one remote; further sends wait.",
            zero="what the remote takes",
        ),
    )
    max_sends: int = field(
        default=16_384,
        metadata=whole("messages", "Messages being sent at once; the next waits.", least=1),
    )
    max_remotes: int = field(
        default=4_096,
        metadata=whole(
            "remotes", "Remotes that are remembered while nothing is in flight to them.", least=1
        ),
    )
    min_rate: int = field(
        default=1_024,
        metadata=whole(
            "bytes per second",
            "The minimum rate of a transfer after its first `receive_timeout`; a slower one is "
            "aborted. One PDU of the smallest size per half second is enough, so a path with heavy "
            "loss passes, but single bytes do not keep a transfer alive.",
        ),
    )
    max_receives: int = field(
        default=16_384,
        metadata=whole(
            "messages",
            "Messages that have begun to arrive and were not taken; above that, senders must "
            "retry. One remote holds as many as it leaves free: at most half.",
            least=1,
        ),
    )
    max_received: int = field(
        default=64 * MIB,
        metadata=whole(
            "bytes",
            "The same in bytes that have arrived; announced lengths do not count. With at least "
            "twice `max_message`, one large message can arrive regardless of other transfers.",
            least="max_message",
        ),
    )
    max_processed: int = field(
        default=1_000_000,
        metadata=whole(
            "ids",
            "Processed message ids, about 120 bytes each; above that, senders must retry. With the "
            "default times they are remembered for up to 18 seconds, so a million allows more than "
            "50,000 messages per second.",
            least=1,
        ),
    )

    @property
    def max_data(self) -> int:
        """The most data in one PDU."""
        assert self.max_pdu, "the transport chooses max_pdu where the user does not"
        return self.max_pdu - OVERHEAD


declare(IpcSettings)
