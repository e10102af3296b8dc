"""The budget of incoming messages, shared among the remotes that send them.

Only bytes that have arrived count, never announced lengths, and they count against the remote that
sent them. A remote may hold as much as it leaves free for others. When room is short, the oldest
transfer may finish, and transfers that are too slow are aborted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from aqueduct.ipc.core.incoming import IncomingState, IncomingTransfer, RemoteAccount
from aqueduct.ipc.core.settings import IpcSettings

_MAX_EXAMINED = 8
"""Transfers to examine when room is short: a constant cost per PDU. The next PDU examines the next
ones."""
_FEW = 64


class ReceiveBudget:
    """The budget of all incoming messages (IPC-FLOW-2, IPC-FLOW-8)."""

    def __init__(self, config: IpcSettings, displace: Callable[[IncomingTransfer], None]) -> None:
        """``displace``: abort a transfer and `release` it, to make room for another."""
        self.count = 0
        self.held = 0
        self._max_count = config.max_receives
        self._max_held = config.max_received
        self._most_reserved = min(config.max_message, config.max_received // 2)
        self._timeout = config.receive_timeout
        self._displace = displace
        self._accounts: dict[Hashable, RemoteAccount] = {}
        self._most_accounts = config.max_remotes
        # Transfers that are not whole: by age, and in the order in which to examine them.
        self._partial: OrderedDict[bytes, IncomingTransfer] = OrderedDict()
        self._ring: deque[IncomingTransfer] = deque()

    def admit(self, remote: Hashable, size: int, now: float) -> RemoteAccount | None:
        """Count a message that begins with a piece of this size; None if there is no room for it.

        Then `begin` it unless that is all of it, and `release` it in the end.
        """
        account = self._accounts.get(remote)
        if account is None:
            account = self._open(remote)
        if (
            account.count >= self._max_count - self.count
            or account.held + size > self._max_held - self.held - self._most_reserved
        ) and not self._admits_at_last(account, size, now):
            return None
        self.count += 1
        account.count += 1
        self.held += size
        account.held += size
        return account

    def begin(self, transfer: IncomingTransfer) -> None:
        """Register a message whose first piece is not all of it."""
        self._partial[transfer.message_id] = transfer
        self._ring.append(transfer)
        if len(self._ring) > 2 * len(self._partial) + _FEW:
            self._ring = deque(self._partial.values())

    def add(self, transfer: IncomingTransfer, size: int, now: float) -> bool:
        """Count another piece of a message; False if there is no room for it."""
        account = transfer.account
        if account.held + size > self._max_held - self.held - self._most_reserved:
            if not self._fits_at_last(account, size, transfer, now):
                return False
        self.held += size
        account.held += size
        return True

    def complete(self, transfer: IncomingTransfer) -> None:
        """Record that a registered message is complete."""
        self._partial.pop(transfer.message_id, None)

    def release(self, transfer: IncomingTransfer) -> None:
        """Release a message that was taken, rejected or aborted."""
        arrived = transfer.length - transfer.missing
        self.count -= 1
        self.held -= arrived
        account = transfer.account
        account.count -= 1
        account.held -= arrived
        if self._partial:
            self._partial.pop(transfer.message_id, None)

    def _open(self, remote: Hashable) -> RemoteAccount:
        """Create the account of a new remote."""
        if len(self._accounts) >= self._most_accounts:
            self._sweep()
        account = self._accounts[remote] = RemoteAccount()
        return account

    def _admits_at_last(self, account: RemoteAccount, size: int, now: float) -> bool:
        while account.count >= self._max_count - self.count:  # IPC-FLOW-8
            if not self._make_room(None, now):
                return False
        return self._fits_at_last(account, size, None, now)

    def _fits_at_last(
        self, account: RemoteAccount, size: int, transfer: IncomingTransfer | None, now: float
    ) -> bool:
        while not self._fits(account, size, transfer):
            if not self._make_room(transfer, now):
                return False
        return True

    def _fits(self, account: RemoteAccount, size: int, transfer: IncomingTransfer | None) -> bool:
        free = self._max_held - self.held
        if self._partial:
            first = next(iter(self._partial.values()))
            if first is transfer:
                return size <= free
            if size > free - min(first.missing, self._most_reserved):  # IPC-FLOW-9
                return False
        return size <= free and (account.held == 0 or account.held + size <= free)  # IPC-FLOW-8

    def _make_room(self, transfer: IncomingTransfer | None, now: float) -> bool:
        """Displace a slow transfer other than this one; examine at most `_MAX_EXAMINED`."""
        ring = self._ring
        for _ in range(min(_MAX_EXAMINED, len(ring))):
            other = ring.popleft()
            if other.state is not IncomingState.RECEIVING:
                continue
            if other is not transfer and other.is_behind(now, self._timeout):  # IPC-FLOW-9
                self._displace(other)
                return True
            ring.append(other)
        return False

    def _sweep(self) -> None:
        """Remove the accounts of remotes that hold nothing, when they may be half of all."""
        accounts = self._accounts
        for remote in [each for each, account in accounts.items() if not account.count]:
            del accounts[remote]
        self._most_accounts = max(self._most_accounts, 2 * len(accounts))
