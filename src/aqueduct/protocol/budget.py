"""Memory that a peer makes this side hold: the budgets of all connections, and one's share."""

from __future__ import annotations

from aqueduct.errors import CloseCode, RemoteProtocolError
from aqueduct.protocol.config import COST_OF_CHANNEL, COST_OF_STREAM, Config
from aqueduct.protocol.flow import Window
from aqueduct.wire.chanid import Side
from aqueduct.wire.sequence import ParserLimits

_STREAM_OVERHEAD = 64
"""Bytes of a frame's head that a stream may hold besides what flow control counts."""

_GRAIN = 64 * 1024
"""Bytes by which the charge of an address may lag behind what its connections hold."""


class Budget:
    """A limit of bytes over all connections, in excess of an allowance that each always has."""

    __slots__ = ("allowance", "limit", "used")

    def __init__(self, limit: int, allowance: int) -> None:
        self.limit = limit
        self.allowance = allowance
        self.used = 0


class Share:
    """What one connection holds of a budget."""

    __slots__ = ("_budget", "_used")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._used = 0

    def hold(self, held: int) -> bool:
        """Set the bytes that the connection holds; return False if they exceed the budget."""
        budget = self._budget
        used = max(0, held - budget.allowance)
        more = used - self._used
        if more > 0 and budget.used + more > budget.limit:
            return False
        budget.used += more
        self._used = used
        return True


class AddressAccount:
    """The budgets of one address, before and after acceptance of its connections."""

    __slots__ = ("accepted", "early")

    def __init__(self, early: Budget, accepted: Budget) -> None:
        self.early = early
        self.accepted = accepted


class HeldMemory:
    """The memory that one connection holds for its peer, besides what flow control counts.

    Until the connection is ready it counts against ``max_early_bytes`` and the budgets of clients
    that were not accepted; afterwards against the limits of the connection and the budget of the
    address.
    """

    __slots__ = (
        "_charged",
        "_config",
        "_early_shares",
        "_is_server",
        "_limits",
        "_receive_window",
        "address_share",
        "unread",
    )

    def __init__(
        self,
        side: Side,
        config: Config,
        limits: ParserLimits,
        receive_window: Window,
        early: Budget | None,
        account: AddressAccount | None,
    ) -> None:
        self._is_server = side == Side.SERVER
        self._config = config
        self._limits = limits
        self._receive_window = receive_window
        self._early_shares = [Share(early)] if early is not None else []
        if account is not None:
            self._early_shares.append(Share(account.early))
        self.address_share = Share(account.accepted) if account is not None else None
        self._charged = 0
        self.unread = 0
        """Bytes of frames that arrived in part, or before the connection was ready."""

    def add(self, size: int, streams: int, is_ready: bool) -> None:
        """Count unread bytes, less if negative; raise if a limit is exceeded (AQ-LIMIT-3)."""
        self.unread += size
        if is_ready:
            limits = self._limits
            largest = max(self._receive_window.most(), limits.max_message)
            if self.unread > largest + limits.max_headers + _STREAM_OVERHEAD * streams:
                raise RemoteProtocolError(
                    "AQ-LIMIT-3", "too much in unfinished frames", CloseCode.LIMIT_EXCEEDED
                )
            return
        most = self._config.max_early_bytes
        if not self._is_server:
            most += self._receive_window.most()  # the server knows our limits already
        if self.unread > most:
            raise RemoteProtocolError(
                "AQ-CONN-3", "too much before the headers", CloseCode.LIMIT_EXCEEDED
            )
        self.hold_early(streams)

    def add_early_stream(self, streams: int) -> None:
        """Count a stream before acceptance; raise if a client has too many (AQ-COST-1)."""
        if self._is_server and streams >= self._config.max_early_streams:
            raise RemoteProtocolError(
                "AQ-COST-1", "too many streams before the headers", CloseCode.LIMIT_EXCEEDED
            )
        self.hold_early(streams)

    def release_early(self) -> None:
        """Return the shares of the early budgets: the connection's own limits apply now."""
        for share in self._early_shares:
            share.hold(0)
        self._early_shares = []

    def charge(self, share: Share, streams: int, channels: int) -> bool:
        """Charge the address for streams and channels; return False on excess (AQ-COST-4)."""
        held = COST_OF_STREAM * streams + COST_OF_CHANNEL * channels
        if -_GRAIN < held - self._charged < _GRAIN:
            return True
        if not share.hold(held):
            return False
        self._charged = held
        return True

    def clear(self) -> None:
        """Release everything at the end of the connection."""
        self.unread = 0
        self.release_early()
        if self.address_share is not None:
            self.address_share.hold(0)
            self.address_share = None

    def hold_early(self, streams: int) -> None:
        """Charge the early budgets; raise if one is exceeded (AQ-CONN-3)."""
        held = self.unread + COST_OF_STREAM * streams
        for share in self._early_shares:
            if not share.hold(held):
                raise RemoteProtocolError(
                    "AQ-CONN-3",
                    "all clients together exceed the early budget",
                    CloseCode.LIMIT_EXCEEDED,
                )
