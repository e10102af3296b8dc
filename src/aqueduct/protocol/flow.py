"""Flow control: the windows of bytes in both directions, and the credit that is returned."""

from __future__ import annotations

from collections import deque
from typing import Final

from aqueduct.errors import MessageTooLarge
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.timers import NEVER, Timers
from aqueduct.wire.frames import MessageFrame
from aqueduct.wire.primitives import headers_size

FIRST_WINDOW: Final = 1024 * 1024
"""Bytes in flight on one channel until the path needs more; a quarter is reported at once."""
_NEAR: Final = 0.0015
"""Seconds of a round trip in which no process sends more than that. qh3 rounds shorter ones up to a
millisecond."""
_MEASURED: Final = 0.01
"""Seconds over which the rate of credit is measured at least, because it comes in bursts."""


class Window:
    """Bytes outstanding against a limit; one message larger than the limit may be alone in it.

    The first ``reserve`` bytes of each channel do not count against the limit (AQ-FLOW-10), as long
    as those of all channels are within ``pool``. ``limit`` grows with ``reserved``, so that a
    message on a channel with a full reserve needs one comparison, as without reserves.
    """

    __slots__ = ("base", "limit", "outstanding", "pool", "reserve", "reserved")

    def __init__(self, limit: int, reserve: int = 0, pool: int = 0) -> None:
        self.base = limit
        """The limit while no reserve is in use."""
        self.limit = limit
        """The current limit: the base plus the reserves in use."""
        self.reserve = reserve
        self.pool = pool
        self.reserved = 0
        """Outstanding bytes in the reserves of their channels."""
        self.outstanding = 0

    def open(self, limit: int, reserve: int, pool: int) -> None:
        """Set the limits; the caller then adds the reserves in use."""
        self.base = limit
        self.reserve = reserve
        self.pool = pool
        self.add(0, 0)

    def most(self) -> int:
        """Return the most that may be outstanding, reserves included."""
        return self.base + self.pool

    def spare(self, outstanding: int, size: int) -> int:
        """Return how much of a message fits the reserve of a channel with ``outstanding`` bytes."""
        free = self.reserve - outstanding
        if free <= 0:
            return 0
        return size if size < free else free  # `min` is a slow call in compiled code

    def fits(self, size: int, spare: int = 0) -> bool:
        """Return whether a message fits, with ``spare`` bytes of it in its channel's reserve."""
        limit = self.limit
        if spare or (not size and self.reserve):
            limit = self.base + min(self.reserved + spare, self.pool)
            if limit - self.limit == size:
                return True  # AQ-FLOW-10: it uses nothing of the shared window
        # AQ-FLOW-3: alone in the shared window, a message may have any size.
        return self.outstanding + size <= limit or self.outstanding <= self.limit - self.base

    def add(self, size: int, spare: int) -> None:
        """Add a message, with ``spare`` bytes of it in its channel's reserve."""
        self.outstanding += size
        self.reserved += spare
        reserved = self.reserved
        self.limit = self.base + (reserved if reserved < self.pool else self.pool)

    def remove(self, size: int, spare: int) -> None:
        """Remove bytes, ``spare`` of them from their channel's reserve."""
        self.add(-size, -spare)

    def clear(self) -> None:
        """Reset the window: nothing is outstanding."""
        self.outstanding = self.reserved = 0
        self.limit = self.base


class WindowGrowth:
    """How much of the peer's channel window a sender uses: little until the path needs more.

    A channel on a long path needs a window of its bandwidth times its round-trip time. But what a
    slow receiver does not take waits in such a window, too: it holds memory on both sides, and
    delays what follows on the channel. So all channels of a connection begin with `FIRST_WINDOW`.
    While senders have to wait for a channel window, this measures how fast credit comes back. At
    half of the window or more in a round trip, the path limits the sender and not the receiver, and
    the window doubles, up to what the peer allows. The round trip is that of the path without
    queues: the more waits in them, the longer a round trip takes, and a window that grew with it
    would fill them further.
    """

    __slots__ = ("_began_at", "_returned", "blocked", "limit", "window")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """What the peer allows."""
        self.window = min(limit, FIRST_WINDOW)
        self.blocked: int | None = None
        """The channel whose credit is measured, because its sender had to wait for its window."""
        self._began_at = NEVER
        self._returned = 0

    def open(self, limit: int) -> None:
        """Set what the peer allows."""
        self.limit = limit
        self.window = min(limit, FIRST_WINDOW)

    def wait(self, channel: int) -> None:
        """Measure the credit of a channel whose sender waits, unless another one is measured."""
        if self.blocked is None:
            self.blocked = channel

    def add(self, channel: int, size: int, now: float, rtt: float) -> None:
        """Count credit of a channel, if that one is measured; ``rtt`` is that of the path."""
        if rtt < _NEAR:
            return
        if self._began_at > now:
            self._began_at, self._returned = now, 0
            return
        if channel == self.blocked:
            self._returned += size
        elapsed = now - self._began_at
        if elapsed < rtt or elapsed < _MEASURED:
            return
        if self._returned * rtt * 2 >= self.window * elapsed > 0:
            self.window = min(2 * self.window, self.limit)
        self.blocked = None
        self._began_at = NEVER


class WrittenOff:
    """Bytes of lost channels, returned once the peer has certainly dropped them (AQ-FLOW-8)."""

    __slots__ = ("_timers", "_waiting", "_window", "reserved", "total", "wake_at")

    def __init__(self, window: Window, timers: Timers) -> None:
        self._window = window
        self._timers = timers
        self._waiting: deque[tuple[float, int, int]] = deque()
        self.wake_at = NEVER
        self.total = 0
        """Bytes that are not returned yet."""
        self.reserved = 0
        """The part of them in the reserves of their channels."""

    def add(self, size: int, at: float, spare: int = 0) -> None:
        """Return these bytes to the window at the given time."""
        self.total += size
        self.reserved += spare
        self._waiting.append((at, size, spare))
        self._timers.wake(self, at)

    def clear(self) -> None:
        """Forget all of them; the window was reset."""
        self._waiting.clear()
        self.total = self.reserved = 0

    def handle_timer(self, now: float) -> None:
        """Return the bytes that are due to the window."""
        while self._waiting and self._waiting[0][0] <= now:
            _, size, spare = self._waiting.popleft()
            self._window.remove(size, spare)
            self.total -= size
            self.reserved -= spare
        if self._waiting:
            self._timers.wake(self, self._waiting[0][0])


class Credit:
    """The flow-control state of one connection, in both directions.

    A half keeps the counts of its own channel and passes them to the verbs here; this object keeps
    the sums over all channels. Sending: `charge` before bytes leave, `release` when the peer
    returns credit, `write_off` when a channel is lost. Receiving: `hold` when bytes arrive, `take`
    when the application takes them, `report` when DEQUEUED returns their credit; `discard` and
    `drain` when the channel ends first.

    `SendingHalf.send` repeats `fits` and `charge` inline: a call per message would be too slow.
    """

    __slots__ = (
        "_limits",
        "_receive_channel_window",
        "draining",
        "growth",
        "peer_limits",
        "receive_window",
        "report_at",
        "send_window",
        "unreported",
        "unreported_channels",
        "written_off",
    )

    def __init__(self, config: Config, timers: Timers) -> None:
        initial = config.initial_limits
        limits = config.limits
        self._limits = limits
        self.peer_limits = initial
        self.growth = WindowGrowth(initial.channel_window)
        self.send_window = Window(
            initial.connection_window, initial.channel_reserve, initial.reserve_window
        )
        # AQ-FLOW-8: the peer may have written off bytes of lost channels that are still here.
        allowed = max(limits.connection_window, initial.connection_window)
        reserve = max(limits.channel_reserve, initial.channel_reserve)
        pool = 2 * max(limits.reserve_window, initial.reserve_window)
        # AQ-FLOW-10: a message larger than the window may overtake those that used the reserves.
        self.receive_window = Window(2 * allowed, reserve, pool + reserve)
        self._receive_channel_window = max(limits.channel_window, initial.channel_window)
        self.written_off = WrittenOff(self.send_window, timers)
        self.draining = 0
        """Bytes in the queues of finished channels that the peer no longer counts."""
        self.unreported = 0
        """Bytes taken by the application over all channels and not yet reported DEQUEUED."""
        self.unreported_channels: dict[int, None] = {}
        """The channels of these bytes, oldest first."""
        self.report_at = -(-limits.connection_window // 4)
        """Unreported bytes at which all channels must report (AQ-FLOW-4)."""

    def clear(self) -> None:
        """Reset everything at the end of the connection."""
        self.send_window.clear()
        self.receive_window.clear()
        self.written_off.clear()
        self.draining = self.unreported = 0
        self.unreported_channels.clear()

    # -- sending ---------------------------------------------------------------------------------

    def open(self, limits: Limits, outstanding: list[int]) -> None:
        """Apply the limits that the peer stated, given the outstanding bytes of each sender."""
        self.peer_limits = limits
        self.growth.open(limits.channel_window)
        window = self.send_window
        before = window.reserve
        window.open(limits.connection_window, limits.channel_reserve, limits.reserve_window)
        for used in outstanding:
            window.add(0, min(used, window.reserve) - min(used, before))

    def fits(self, outstanding: int, size: int) -> bool:
        """Return whether a channel with ``outstanding`` bytes may send ``size`` more."""
        window = self.send_window
        return self.fits_channel(outstanding, size) and window.fits(
            size, window.spare(outstanding, size)
        )

    def fits_channel(self, outstanding: int, size: int) -> bool:
        """Return whether ``size`` more bytes fit the channel window."""
        limit = self.growth.window
        return outstanding + size <= limit or outstanding == 0  # AQ-FLOW-3

    def charge(self, outstanding: int, size: int) -> int:
        """Count bytes that leave; return the outstanding bytes of their channel with them."""
        window = self.send_window
        window.add(size, window.spare(outstanding, size))
        return outstanding + size

    def release(self, outstanding: int, size: int) -> int:
        """Take credit back; return the outstanding bytes of the channel without them."""
        window = self.send_window
        left = outstanding - size
        window.remove(size, window.spare(left, size))
        return left

    def write_off(self, size: int, at: float) -> None:
        """Take back all credit of a lost channel, but only at the given time (AQ-FLOW-8)."""
        self.written_off.add(size, at, self.send_window.spare(0, size))

    # -- receiving -------------------------------------------------------------------------------

    def exceeded(self, held: int, size: int, reserved: int, earlier: int) -> str | None:
        """Return which window a message exceeds, if any (AQ-FLOW-2).

        ``held`` and ``reserved`` are its channel's bytes before it; ``earlier`` bytes came in the
        same run and are not counted yet. An empty message always fits.
        """
        if not size:
            return None
        if held and held + size > self._receive_channel_window:
            return "channel"
        window = self.receive_window
        outstanding = window.outstanding + earlier
        # AQ-FLOW-10: bytes in the reserves, before this message and with it.
        others = window.reserved - reserved
        before = min(others + window.spare(0, held), window.pool)
        after = min(others + window.spare(0, held + size), window.pool)
        shared = size - (after - before)
        if shared and outstanding > before and outstanding + size > window.base + after:
            return "connection"
        return None

    def hold(self, size: int, held: int, reserved: int, *, is_checked: bool = False) -> int:
        """Count bytes that arrived on a channel that holds ``held`` bytes with them.

        Return the bytes in the channel's reserve, which were ``reserved`` before. If the bytes do
        not fit as a whole, count nothing and return -1: check each message with `exceeded`, then
        call it again with ``is_checked``.
        """
        window = self.receive_window
        if not is_checked and (
            held > self._receive_channel_window or window.outstanding + size > window.limit
        ):
            return -1
        window.outstanding += size
        if reserved < window.reserve:
            now = min(held, window.reserve)
            window.add(0, now - reserved)
            return now
        return reserved

    def take(self, channel: int, size: int, unreported: int) -> bool:
        """Count bytes that the application took from a channel with ``unreported`` bytes now.

        Return whether the channel must report them: they are a quarter of its window, or of the
        window that senders begin with (AQ-FLOW-4).
        """
        if size:
            self.unreported += size
            self.unreported_channels[channel] = None
        return unreported * 4 >= self._limits.channel_window or unreported * 4 >= FIRST_WINDOW

    def report(self, channel: int, size: int, queued: int, reserved: int) -> int:
        """Return the credit of all bytes taken from a channel that has ``queued`` bytes left.

        Return the bytes in the channel's reserve, which were ``reserved`` before.
        """
        left = min(queued, self.receive_window.reserve)
        self.discard(channel, 0, size, reserved - left)
        return left

    def discard(self, channel: int, queued: int, unreported: int, reserved: int) -> None:
        """Count the bytes of a channel off: those ``queued``, and those taken but not reported."""
        self.receive_window.remove(queued + unreported, reserved)
        self.unreported -= unreported
        self.unreported_channels.pop(channel, None)

    def must_drain_first(self, queued: int) -> bool:
        """Return whether CLOSE_RECEIVER must wait until the queue was taken (AQ-FLOW-7)."""
        return self.draining + queued > self._limits.connection_window

    def drain_later(self, queued: int) -> None:
        """Keep counting the queue of a channel that ended on the wire, apart from the window."""
        self.draining += queued

    def drain(self, size: int) -> None:
        """Count bytes off that the application took, or dropped, from such a queue."""
        self.draining -= size


def check_message(message: MessageFrame, size: int, limits: Limits) -> None:
    """Raise MessageTooLarge if a message exceeds the peer's limits (AQ-LIMIT-3)."""
    if size > limits.max_message:
        raise MessageTooLarge(
            f"a message of {size} bytes; the peer takes at most {limits.max_message}. "
            "Send a channel of smaller messages instead"
        )
    if len(message.attachments) > limits.max_attachments:
        raise MessageTooLarge(
            f"{len(message.attachments)} channels in one message; "
            f"the peer takes at most {limits.max_attachments}"
        )
    for headers in (message.headers, *(a.headers for a in message.attachments)):
        if headers and headers_size(headers) > limits.max_headers:
            raise MessageTooLarge(f"the peer takes at most {limits.max_headers} bytes of headers")
