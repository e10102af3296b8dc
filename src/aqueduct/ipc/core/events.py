"""Inputs and outputs of the core besides PDUs: randomness, transmits, events, counters."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from aqueduct.ipc.core.outgoing import OutgoingTransfer


class Randomness(Protocol):
    """Where ids and backoffs come from; ``random.Random`` is one."""

    def randbytes(self, n: int, /) -> bytes:
        """Bytes nobody can guess."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between two others."""


class Heard(IntEnum):
    """Whether a batch of PDUs was useful."""

    MALFORMED = 0
    """At least one was malformed."""
    USELESS = 1
    """All were well-formed, and none advanced a message."""
    USEFUL = 2
    """At least one advanced a message, or acknowledged one."""


class Transmit(NamedTuple):
    """A PDU to send, in two parts so that data need not be copied."""

    remote: Hashable
    head: bytes
    data: bytes | memoryview
    transfer: OutgoingTransfer | None
    """Whose PDU it is, for `Exchange.handle_sent`; None for an answer."""


class Arrived(NamedTuple):
    """A message is whole; answer with `Exchange.take` or `Exchange.refuse`."""

    message_id: bytes
    remote: Hashable
    payload: bytes


class Withdrawn(NamedTuple):
    """The sender has given up a message that had arrived, and it can no longer be taken.

    It counts against the limits until it is answered all the same: what the application does with
    it may take time and room.
    """

    message_id: bytes


class Ended(NamedTuple):
    """A send has ended: delivered, or not, and then perhaps ``exposed``: it may have arrived."""

    message_id: bytes
    remote: Hashable
    code: int
    exposed: bool
    reason: str = ""


Event: TypeAlias = Arrived | Withdrawn | Ended


@dataclass(slots=True)
class Statistics:
    """Counts since the endpoint began."""

    sent: int = 0
    """Messages that were delivered."""
    failed: int = 0
    """Messages that were not, or not for certain."""
    received: int = 0
    """Messages that the application took."""
    refused: int = 0
    """Messages that the application could not make use of."""
    aborted: int = 0
    """Messages that began to arrive and then did not: given up by their sender or out of time."""
    displaced: int = 0
    """The aborted transfers that were too slow and were displaced by others."""
    duplicates: int = 0
    """PDUs that came again, and were answered once more."""
    retries: int = 0
    """PDUs sent again for want of an answer."""
    misdirected: int = 0
    """PDUs for an owner id that this endpoint does not have, or no longer."""
    crowded_out: int = 0
    """PDUs rejected because of a limit; their senders retry."""
    malformed: int = 0
    """PDUs that broke a rule and were dropped."""
    ignored: int = 0
    """PDUs that came too late, too early or for nobody."""
    pdus_sent: int = 0
    pdus_received: int = 0
