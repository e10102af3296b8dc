"""Inputs and outputs of the core besides PDUs: randomness, transmits, events, counters."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from aqueduct.ipc.core.outgoing import OutgoingTransfer


class Randomness(Protocol):
    """The source of ids and backoffs; ``random.Random`` implements it."""

    def randbytes(self, n: int, /) -> bytes:
        """Return ``n`` unpredictable bytes."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a random number between ``a`` and ``b``."""


class BatchResult(IntEnum):
    """The effect of a batch of PDUs."""

    MALFORMED = 0
    """At least one was malformed."""
    USELESS = 1
    """All were well-formed, and none advanced a message."""
    USEFUL = 2
    """At least one advanced a message, or acknowledged one."""


class Transmit(NamedTuple):
    """A PDU to send, in two parts so that the data is not copied."""

    remote: Hashable
    head: bytes
    data: bytes | memoryview
    transfer: OutgoingTransfer | None
    """The transfer of the PDU, for `Exchange.handle_sent`; None for an ack."""


class Arrived(NamedTuple):
    """A message is complete; answer with `Exchange.take` or `Exchange.refuse`."""

    message_id: bytes
    remote: Hashable
    payload: bytes


class Withdrawn(NamedTuple):
    """The sender aborted a message that had arrived, and it can no longer be taken.

    It counts against the limits until `Exchange.take` or `Exchange.refuse`, because the application
    may still be using it.
    """

    message_id: bytes


class Ended(NamedTuple):
    """A send ended. If it failed, ``exposed`` says whether the message may have arrived."""

    message_id: bytes
    remote: Hashable
    code: int
    exposed: bool
    reason: str = ""


Event: TypeAlias = Arrived | Withdrawn | Ended


@dataclass(slots=True)
class Statistics:
    """Counters since the endpoint was opened."""

    sent: int = 0
    """Messages that were delivered."""
    failed: int = 0
    """Messages that were not delivered, or whose outcome is unknown."""
    received: int = 0
    """Messages that the application took."""
    refused: int = 0
    """Messages that the application refused."""
    aborted: int = 0
    """Messages that arrived in part, and whose sender aborted them or timed out."""
    displaced: int = 0
    """The aborted transfers that were too slow and were displaced by others."""
    duplicates: int = 0
    """PDUs that arrived again, and were acknowledged again."""
    retries: int = 0
    """PDUs that were retransmitted without an ack."""
    misdirected: int = 0
    """PDUs for an owner id that this endpoint does not have."""
    over_limit: int = 0
    """PDUs rejected because of a limit; their senders retry."""
    malformed: int = 0
    """PDUs that broke a rule and were dropped."""
    ignored: int = 0
    """PDUs that match no transfer, or not its current state."""
    pdus_sent: int = 0
    pdus_received: int = 0
