"""What devices say to the gateway, and what the pipeline and its processes say to each other."""

from __future__ import annotations

import msgspec

from aqueduct.api.handles import Receiver, Sender

Counts = dict[str, int]
"""By mode."""


class Attend(msgspec.Struct):
    """A device, and the channels on which its records come."""

    device: str
    ordered: Receiver[bytes]
    unordered: Receiver[bytes]
    unreliable: Receiver[bytes]
    total: Sender[Counts]
    """Answered when all three have ended and everything was handed on."""


class IngestPlan(msgspec.Struct):
    """What the ingest process is to do."""

    directory: str
    listen: str
    partitions: int


class GatewayPlan(msgspec.Struct):
    """What the gateway process is to do."""

    targets: list[tuple[str, str]]
    """Server and topic; devices are shared out among them."""
    producer_id: str
    partitions: int
    authorities: str | None
    pinned: str | None
    token: str | None
    give_up_after: float = 10.0
    """Seconds for which a server may be out of reach."""


class DevicesPlan(msgspec.Struct):
    """What the process of the devices is to do."""

    gateway: str
    devices: int
    rate: float
    seed: int
    loss: float


class Listening(msgspec.Struct, tag=True):
    """A process is ready."""

    address: str
    fingerprint: str = ""


class Mark(msgspec.Struct, tag=True):
    """Ask for a record in each partition behind everything that was stored before."""

    event: int | None
    """The time that it tells, in microseconds since 1970, if any."""


class Marked(msgspec.Struct, tag=True):
    """Where those records are: offsets by topic and partition."""

    offsets: dict[str, dict[str, int]]


class Begin(msgspec.Struct, tag=True):
    """Have devices send."""


class Stop(msgspec.Struct, tag=True):
    """Finish what is under way, and tell what became of it."""


class Told(msgspec.Struct, tag=True):
    """How it goes, and at the end how it went."""

    sent: Counts = {}
    arrived: Counts = {}
    lost: Counts = {}
    """As the senders of the unreliable channels know it."""
    late: Counts = {}
    """What was sent late, by how late it was."""
    done: bool = False


class Failed(msgspec.Struct, tag=True):
    """A process cannot go on, and says why."""

    reason: str


Order = Mark | Begin | Stop
Report = Listening | Marked | Told | Failed
