"""The sending side of an endpoint: all outgoing transfers, and the state of each remote."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from aqueduct.errors import MessageTooLarge, WouldBlock
from aqueduct.ipc.core.events import Ended, Randomness, Statistics, Transmit
from aqueduct.ipc.core.outgoing import OutgoingState, OutgoingTransfer
from aqueduct.ipc.core.pdu import (
    ID_SIZE,
    INCARNATION,
    MAX_INT32,
    OVERHEAD,
    Code,
    DataAck,
    HeaderAck,
    decode_owner,
    decode_size,
)
from aqueduct.ipc.core.settings import MIN_PDU, IpcSettings
from aqueduct.protocol.timers import NEVER, Timers

DATAGRAM_OVERHEAD = 1_024
"""Bytes that a datagram takes of a socket's buffer in addition to its data."""
SMALLEST_WINDOW = 64 * 1024 + DATAGRAM_OVERHEAD
"""Bytes: one PDU of any transport for one host, or some dozens of small ones."""
INITIAL_WINDOW = 256 * 1024


class CongestionWindow:
    """The congestion window of one remote, in bytes of a receiver's buffer (IPC-FLOW-1).

    It doubles per round trip (slow start), then adds a PDU per round trip, and halves on loss.
    """

    __slots__ = ("_largest", "_quiet_until", "_threshold", "limit", "used")

    def __init__(self, largest: int) -> None:
        self._largest = max(largest, SMALLEST_WINDOW)
        self.limit = min(INITIAL_WINDOW, self._largest)
        self._threshold = self._largest
        self._quiet_until = 0.0
        self.used = 0

    def fits(self, size: int) -> bool:
        """Return whether a PDU fits; one alone always does."""
        return self.used == 0 or self.used + size + DATAGRAM_OVERHEAD <= self.limit

    def add(self, size: int) -> None:
        """Count a PDU that is sent."""
        self.used += size + DATAGRAM_OVERHEAD

    def remove(self, size: int) -> None:
        """Count off a PDU that was answered or given up."""
        self.used -= size + DATAGRAM_OVERHEAD

    def grow(self, size: int) -> None:
        """Grow after an ack: by the PDU in slow start, else by its share (IPC-FLOW-5)."""
        gained = size + DATAGRAM_OVERHEAD
        if self.limit > self._threshold:
            gained = gained * gained // self.limit + 1
        self.limit = min(self.limit + gained, self._largest)

    def shrink(self, now: float, quiet: float) -> None:
        """Halve after a loss; ignore further losses within ``quiet`` seconds."""
        if now < self._quiet_until:
            return
        self._quiet_until = now + quiet
        self.limit = max(self.limit // 2, SMALLEST_WINDOW)
        self._threshold = self.limit


class _RemoteState:
    """What is known of one remote, and the transfers that wait for its congestion window."""

    __slots__ = (
        "error",
        "last_ack_at",
        "max_data",
        "owner",
        "probe",
        "transfers",
        "trusted_until",
        "waiting",
        "window",
    )

    def __init__(self, window: int) -> None:
        self.owner = b""
        self.trusted_until = 0.0
        self.max_data = MAX_INT32
        """The most data per PDU that it accepts, if it stated a limit."""
        self.window = CongestionWindow(window)
        # In the order of sending. An OrderedDict, because any of them may be removed.
        self.waiting: OrderedDict[OutgoingTransfer, None] = OrderedDict()
        self.transfers: dict[OutgoingTransfer, None] = {}
        self.last_ack_at = -NEVER
        self.probe: OutgoingTransfer | None = None
        """The last transfer that was started in excess of the window, as a probe."""
        self.error = ""
        """The last error of the transport."""

    def learn(self, owner: bytes, now: float, trust: float) -> None:
        self.owner = owner
        self.trusted_until = now + trust
        self.error = ""


class TransferSender:
    """All outgoing transfers of an endpoint."""

    def __init__(
        self,
        config: IpcSettings,
        randomness: Randomness,
        timers: Timers,
        statistics: Statistics,
        reports_sent: bool,
    ) -> None:
        self.max_data = config.max_data
        self.transmits: list[Transmit] = []
        self.ended: list[Ended] = []
        self._config = config
        self._randomness = randomness
        self._timers = timers
        self._statistics = statistics
        self._reports_sent = reports_sent
        # By the id in their PDUs; `_renamed` maps the application's ids that differ.
        self._transfers: dict[bytes, OutgoingTransfer] = {}
        self._renamed: dict[bytes, bytes] = {}
        self._remotes: dict[Hashable, _RemoteState] = {}
        # Remotes without a transfer, the one idle for longest first.
        self._idle: OrderedDict[Hashable, None] = OrderedDict()
        self._closed = False

    def send(self, remote: Hashable, payload: bytes, now: float) -> bytes:
        """Start a transfer, or queue it for the congestion window; return its id."""
        if len(payload) > MAX_INT32:
            raise MessageTooLarge(f"a message of {len(payload)} bytes; the limit is 2**31 - 1")
        if len(self._transfers) >= self._config.max_sends:
            # IPC-FLOW-4
            raise WouldBlock(f"{self._config.max_sends} messages are being sent (max_sends)")
        message_id = self._fresh_id()  # IPC-SEND-1
        known = self._remote(remote)
        deadline = now + self._config.ack_timeout
        transfer = OutgoingTransfer(
            message_id, remote, payload, self.max_data, deadline, self._wake
        )
        self._transfers[message_id] = transfer
        if not known.transfers:
            self._idle.pop(remote, None)
        known.transfers[transfer] = None
        if not known.waiting and known.window.fits(transfer.current_size):
            self._start(transfer, known, now)
        else:
            known.waiting[transfer] = None  # IPC-FLOW-1
            self._timers.wake(transfer, deadline)
        return message_id

    def cancel(self, message_id: bytes, code: int, now: float) -> None:
        """Abort a transfer; no-op if it has ended."""
        transfer = self._transfers.get(self._renamed.get(message_id, message_id))
        if transfer is not None:
            self._give_up(transfer, code, now)

    def close(self, now: float) -> None:
        """Abort all transfers."""
        self._closed = True
        for transfer in list(self._transfers.values()):
            self._give_up(transfer, Code.SHUTDOWN, now)

    def leftovers(self) -> dict[str, int]:
        """Return what is held, by kind."""
        remotes = self._remotes.values()
        return {
            "outgoing": len(self._transfers),
            "renamed": len(self._renamed),
            "bytes under way": sum(each.window.used for each in remotes),
            "waiting": sum(len(each.waiting) for each in remotes),
        }

    def handle_sent(self, transfer: OutgoingTransfer, now: float) -> None:
        """Start the backoff: a PDU was sent, or could not be (IPC-SEND-4)."""
        if not transfer.ended and transfer.retry_at == NEVER:
            self._schedule(transfer, now)

    def handle_transient_error(self, remote: Hashable, why: str) -> None:
        """Record why the transport could not reach a remote; retries continue."""
        known = self._remotes.get(remote)
        if known is not None:
            known.error = why
            known.trusted_until = 0.0  # the next endpoint there may be another (IPC-ID-3)

    def handle_unreachable(self, remote: Hashable, why: str, now: float) -> None:
        """Fail the transfers to a remote that no retry can reach."""
        known = self._remotes.get(remote)
        if known is not None:
            known.error = why
            for transfer in list(known.transfers):
                self._give_up(transfer, Code.APPLICATION, now)

    def _start(self, transfer: OutgoingTransfer, known: _RemoteState, now: float) -> None:
        if known.owner and now < known.trusted_until:  # IPC-ID-3
            destination, guessed = known.owner, False
        else:
            destination, guessed = self._fresh_id(), True
        piece = min(self.max_data, known.max_data)
        transfer.start(destination, guessed, piece, now + self._config.ack_timeout)  # IPC-SEND-3
        self._transmit(transfer, known, now)

    def _transmit(self, transfer: OutgoingTransfer, known: _RemoteState, now: float) -> None:
        window = known.window
        if transfer.charge:
            window.remove(transfer.charge)
        if not transfer.held:
            transfer.charge = max(transfer.current_size, 1)
            window.add(transfer.charge)
        head, data = transfer.current()
        transfer.retry_at = NEVER
        self.transmits.append(Transmit(transfer.remote, head, data, transfer))
        if self._reports_sent:
            self._timers.wake(transfer, transfer.deadline)
        else:
            self._schedule(transfer, now)

    def _schedule(self, transfer: OutgoingTransfer, now: float) -> None:
        """Schedule the retransmission of the current PDU after a random backoff."""
        config = self._config
        backoff = self._randomness.uniform(config.min_backoff, config.max_backoff)  # IPC-SEND-5
        if transfer.held:
            backoff = max(backoff, config.held_backoff)
        transfer.retry_at = now + backoff
        self._timers.wake(transfer, min(transfer.retry_at, transfer.deadline))

    def _wake(self, transfer: OutgoingTransfer, now: float) -> None:
        if transfer.ended:
            return
        known = self._remotes[transfer.remote]
        deadline = transfer.deadline
        if transfer.state is OutgoingState.WAITING:
            # A queued transfer does not time out while the remote answers others (IPC-FLOW-3).
            deadline = max(deadline, known.last_ack_at + self._config.ack_timeout)
        if now >= deadline:
            self._give_up(transfer, Code.SEND_TIMEOUT, now)  # IPC-SEND-13
        elif now >= transfer.retry_at:
            self._statistics.retries += 1
            # A first retry may only mean that the application is busy (IPC-FLOW-5).
            if transfer.attempts > 1 and not transfer.held:
                known.window.shrink(now, self._config.min_backoff)
            self._transmit(transfer, known, now)  # IPC-SEND-6
            if transfer.state is OutgoingState.DATA and not transfer.held:
                self._send_probe(known, now)
        else:
            self._timers.wake(transfer, min(transfer.retry_at, deadline))

    def _send_probe(self, known: _RemoteState, now: float) -> None:
        """Start one transfer in excess of the window if a remote stays silent (IPC-FLOW-7).

        After a crash of the remote its unfinished transfers fill the window, and its successor
        ignores them; only a HEADER makes it reveal its owner id.
        """
        probe = known.probe
        if (
            known.waiting
            and now >= known.last_ack_at + self._config.max_backoff
            and (probe is None or probe.state is not OutgoingState.HEADER)
        ):
            known.probe = known.waiting.popitem(last=False)[0]
            self._start(known.probe, known, now)

    def handle_header_ack(self, ack: HeaderAck, remote: Hashable, now: float) -> None:
        """Process a HEADER_ACK: continue with DATA, or correct the HEADER."""
        transfer = self._transfers.get(ack.message_id)
        if (
            transfer is None
            or transfer.state is not OutgoingState.HEADER
            or transfer.remote != remote
        ):
            self._statistics.ignored += 1  # IPC-SEND-7
            return
        known = self._remotes[remote]
        known.last_ack_at = now
        if ack.code == Code.SUCCESS:
            # A late ack of a predecessor says nothing about the current owner.
            if not known.owner or known.owner[:INCARNATION] == transfer.destination[:INCARNATION]:
                known.owner = transfer.destination
            self._advance(transfer, known, now)
        elif ack.code == Code.INVALID_DESTINATION:
            self._redirect(transfer, known, decode_owner(ack.payload), now)
        elif ack.code == Code.PDU_TOO_LARGE:
            self._refragment(transfer, known, decode_size(ack.payload), now)
        else:
            transfer.refuse(ack.code)  # IPC-SEND-8
            self._finish(transfer, now)

    def _redirect(
        self, transfer: OutgoingTransfer, known: _RemoteState, owner: bytes | None, now: float
    ) -> None:
        if owner is None or owner == transfer.destination:
            self._statistics.ignored += 1
            return
        before = known.owner
        known.learn(owner, now, self._config.id_trust)  # IPC-SEND-9
        if now >= transfer.deadline:
            # The timer is late, and the receiver may have dropped the id (IPC-CONF-2).
            self._give_up(transfer, Code.SEND_TIMEOUT, now)
            return
        if not transfer.redirect(owner):
            transfer.refuse(Code.PEER_RESTARTED)
            self._finish(transfer, now)
        elif transfer.may_retransmit_now:
            self._transmit(transfer, known, now)
        if owner[:INCARNATION] != before[:INCARNATION]:
            self._fail_unfinished(known, owner, now)

    def _fail_unfinished(self, known: _RemoteState, owner: bytes, now: float) -> None:
        """Fail the transfers that a remote had started to receive before its restart (IPC-ID-6).

        Its successor ignores the rest of such a message. The transfer would be retried until its
        deadline, while others wait for the window.
        """
        for transfer in list(known.transfers):
            if (
                transfer.state is OutgoingState.DATA
                and transfer.destination[:INCARNATION] != owner[:INCARNATION]
            ):
                transfer.refuse(Code.PEER_RESTARTED)
                self._finish(transfer, now)

    def _refragment(
        self, transfer: OutgoingTransfer, known: _RemoteState, size: int | None, now: float
    ) -> None:
        if size is None or not MIN_PDU - OVERHEAD <= size < transfer.piece:
            self._statistics.ignored += 1
            return
        known.max_data = min(known.max_data, size)
        before = transfer.wire_id
        if not transfer.refragment(size, self._fresh_id()):
            transfer.refuse(Code.PDU_TOO_LARGE)
            self._finish(transfer, now)
            return
        if transfer.wire_id != before:
            del self._transfers[before]
            self._transfers[transfer.wire_id] = transfer
            self._renamed[transfer.message_id] = transfer.wire_id
        if transfer.may_retransmit_now:
            self._transmit(transfer, known, now)

    def handle_data_ack(self, ack: DataAck, remote: Hashable, now: float) -> None:
        """Process a DATA_ACK: continue with the next DATA."""
        transfer = self._transfers.get(ack.message_id)
        if (
            transfer is None
            or transfer.state is not OutgoingState.DATA
            or transfer.index != ack.sequence
            or transfer.remote != remote
        ):
            if transfer is not None and transfer.remote == remote and _is_notice(ack, transfer):
                self._hold(transfer, now)
            else:
                self._statistics.ignored += 1  # IPC-SEND-11
            return
        known = self._remotes[remote]
        known.last_ack_at = now
        if ack.code == Code.SUCCESS:
            self._advance(transfer, known, now)
        else:
            transfer.refuse(ack.code)  # IPC-SEND-8
            self._finish(transfer, now)

    def _hold(self, transfer: OutgoingTransfer, now: float) -> None:
        """Wait for the receiver's application, without charge to the window (IPC-SEND-18)."""
        known = self._remotes[transfer.remote]
        known.last_ack_at = now
        transfer.held = True
        self._schedule(transfer, now)
        if transfer.charge:
            if transfer.attempts <= 2:  # the receiver got a duplicate, so neither copy was lost
                known.window.grow(transfer.charge)
            known.window.remove(transfer.charge)
            transfer.charge = 0
            self._start_waiting(known, now)

    def _advance(self, transfer: OutgoingTransfer, known: _RemoteState, now: float) -> None:
        if transfer.destination == known.owner:
            known.learn(known.owner, now, self._config.id_trust)
        if transfer.attempts == 1:
            known.window.grow(transfer.charge)
        if transfer.advance(now + self._config.ack_timeout):
            self._finish(transfer, now)
        else:
            self._transmit(transfer, known, now)

    def _give_up(self, transfer: OutgoingTransfer, code: int, now: float) -> None:
        """Fail a transfer on this side, and abort it at the receiver (IPC-SEND-14)."""
        if transfer.state is OutgoingState.WAITING:
            del self._remotes[transfer.remote].waiting[transfer]
        else:
            for pdu in transfer.abort():
                self.transmits.append(Transmit(transfer.remote, pdu, b"", None))
        if code == Code.SEND_TIMEOUT:
            transfer.time_out()
        else:
            transfer.reset(code)
        self._finish(transfer, now)

    def _finish(self, transfer: OutgoingTransfer, now: float) -> None:
        """Remove an ended transfer, and start those that waited for its window."""
        del self._transfers[transfer.wire_id]
        self._renamed.pop(transfer.message_id, None)
        transfer.wake_at = NEVER
        known = self._remotes[transfer.remote]
        del known.transfers[transfer]
        if not known.transfers:
            self._idle[transfer.remote] = None
        if transfer.charge:
            known.window.remove(transfer.charge)
            transfer.charge = 0
        if transfer.code == Code.SUCCESS:
            self._statistics.sent += 1
            ended = Ended(transfer.message_id, transfer.remote, Code.SUCCESS, True)
        else:
            self._statistics.failed += 1
            exposed = transfer.exposed
            ended = Ended(transfer.message_id, transfer.remote, transfer.code, exposed, known.error)
        self.ended.append(ended)  # IPC-SEND-17
        self._start_waiting(known, now)

    def _start_waiting(self, known: _RemoteState, now: float) -> None:
        waiting = known.waiting
        while waiting and not self._closed and known.window.fits(next(iter(waiting)).current_size):
            self._start(waiting.popitem(last=False)[0], known, now)

    def _remote(self, remote: Hashable) -> _RemoteState:
        known = self._remotes.get(remote)
        if known is None:
            # Drop the remotes that have been idle for longest (IPC-FLOW-6).
            while self._idle and len(self._remotes) >= self._config.max_remotes:
                del self._remotes[self._idle.popitem(last=False)[0]]
            known = _RemoteState(self._config.window)
            self._remotes[remote] = known
        return known

    def _fresh_id(self) -> bytes:
        return self._randomness.randbytes(ID_SIZE)


def _is_notice(ack: DataAck, transfer: OutgoingTransfer) -> bool:
    """Return whether an ack says that the message is complete but not taken (IPC-RECV-20)."""
    return (
        ack.code == Code.SUCCESS
        and ack.sequence == transfer.index + 1
        and transfer.state is not OutgoingState.WAITING
        and transfer.is_last
    )
