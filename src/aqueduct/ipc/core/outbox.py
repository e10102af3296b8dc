"""All messages on their way out, and what is known of those who should get them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from aqueduct.errors import MessageTooLarge, WouldBlock
from aqueduct.ipc.core.config import MIN_PDU, Config
from aqueduct.ipc.core.events import Chance, Ended, Statistics, Transmit
from aqueduct.ipc.core.outgoing import Outgoing, State
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
from aqueduct.ipc.core.window import Window
from aqueduct.protocol.timers import NEVER, Timers


class _Remote:
    """What is known of one remote, and what waits for room on the way to it."""

    __slots__ = (
        "heard_at",
        "max_data",
        "owner",
        "scout",
        "sendings",
        "trusted_until",
        "waiting",
        "why",
        "window",
    )

    def __init__(self, window: int) -> None:
        self.owner = b""
        self.trusted_until = 0.0
        self.max_data = MAX_INT32
        """The most data in a PDU that it said it takes, if it said so."""
        self.window = Window(window)
        # In the order of sending, and any of them can be taken out as fast as the first.
        self.waiting: OrderedDict[Outgoing, None] = OrderedDict()
        self.sendings: dict[Outgoing, None] = {}
        self.heard_at = -NEVER
        self.scout: Outgoing | None = None
        """The last message that went although there was no room for it."""
        self.why = ""
        """What the transport last said was wrong."""

    def learn(self, owner: bytes, now: float, trust: float) -> None:
        self.owner = owner
        self.trusted_until = now + trust
        self.why = ""


class Outbox:
    """The sending side of an endpoint."""

    def __init__(
        self,
        config: Config,
        chance: Chance,
        timers: Timers,
        statistics: Statistics,
        reports_sent: bool,
    ) -> None:
        self.max_data = config.max_data
        self.transmits: list[Transmit] = []
        self.ended: list[Ended] = []
        self._config = config
        self._chance = chance
        self._timers = timers
        self._statistics = statistics
        self._reports_sent = reports_sent
        # By the ids that their PDUs name; those that the application knows by another are renamed.
        self._sendings: dict[bytes, Outgoing] = {}
        self._renamed: dict[bytes, bytes] = {}
        self._remotes: dict[Hashable, _Remote] = {}
        # Those that nothing is under way to, the one that is so for longest first.
        self._idle: OrderedDict[Hashable, None] = OrderedDict()
        self._closed = False

    def send(self, remote: Hashable, payload: bytes, now: float) -> bytes:
        """Send a message, and return its id."""
        if len(payload) > MAX_INT32:
            raise MessageTooLarge(f"a message of {len(payload)} bytes; at most 2**31 - 1 can go")
        if len(self._sendings) >= self._config.max_sends:
            # IPC-FLOW-4
            raise WouldBlock(f"{self._config.max_sends} messages are being sent (max_sends)")
        message_id = self._fresh_id()  # IPC-SEND-1
        known = self._remote(remote)
        deadline = now + self._config.ack_timeout
        sending = Outgoing(message_id, remote, payload, self.max_data, deadline, self._wake)
        self._sendings[message_id] = sending
        if not known.sendings:
            self._idle.pop(remote, None)
        known.sendings[sending] = None
        if not known.waiting and known.window.fits(sending.current_size):
            self._start(sending, known, now)
        else:
            known.waiting[sending] = None  # IPC-FLOW-1
            self._timers.wake(sending, deadline)
        return message_id

    def cancel(self, message_id: bytes, code: int, now: float) -> None:
        """Give a message up; nothing happens if it has ended."""
        sending = self._sendings.get(self._renamed.get(message_id, message_id))
        if sending is not None:
            self._give_up(sending, code, now)

    def close(self, now: float) -> None:
        """Give everything up."""
        self._closed = True
        for sending in list(self._sendings.values()):
            self._give_up(sending, Code.SHUTDOWN, now)

    def leftovers(self) -> dict[str, int]:
        """What is still held, by kind."""
        remotes = self._remotes.values()
        return {
            "sendings": len(self._sendings),
            "renamed": len(self._renamed),
            "bytes under way": sum(each.window.used for each in remotes),
            "waiting": sum(len(each.waiting) for each in remotes),
        }

    def handle_sent(self, sending: Outgoing, now: float) -> None:
        """A PDU has gone, or could not go: both count (IPC-SEND-4)."""
        if not sending.ended and sending.retry_at == NEVER:
            self._schedule(sending, now)

    def handle_trouble(self, remote: Hashable, why: str) -> None:
        """The transport could not reach a remote just now; the next try may."""
        known = self._remotes.get(remote)
        if known is not None:
            known.why = why
            known.trusted_until = 0.0  # whoever answers next may be another (IPC-ID-3)

    def handle_unreachable(self, remote: Hashable, why: str, now: float) -> None:
        """The transport will not reach a remote however often it tries: fail what goes there."""
        known = self._remotes.get(remote)
        if known is not None:
            known.why = why
            for sending in list(known.sendings):
                self._give_up(sending, Code.APPLICATION, now)

    def _start(self, sending: Outgoing, known: _Remote, now: float) -> None:
        if known.owner and now < known.trusted_until:  # IPC-ID-3
            destination, guessed = known.owner, False
        else:
            destination, guessed = self._fresh_id(), True
        piece = min(self.max_data, known.max_data)
        sending.start(destination, guessed, piece, now + self._config.ack_timeout)  # IPC-SEND-3
        self._transmit(sending, known, now)

    def _transmit(self, sending: Outgoing, known: _Remote, now: float) -> None:
        window = known.window
        if sending.charge:
            window.remove(sending.charge)
        if not sending.held:
            sending.charge = max(sending.current_size, 1)
            window.add(sending.charge)
        head, data = sending.current()
        sending.retry_at = NEVER
        self.transmits.append(Transmit(sending.remote, head, data, sending))
        if self._reports_sent:
            self._timers.wake(sending, sending.deadline)
        else:
            self._schedule(sending, now)

    def _schedule(self, sending: Outgoing, now: float) -> None:
        """Send the current PDU again after a random time, or give up if there is none left."""
        config = self._config
        backoff = self._chance.uniform(config.min_backoff, config.max_backoff)  # IPC-SEND-5
        if sending.held:
            backoff = max(backoff, config.held_backoff)
        sending.retry_at = now + backoff
        self._timers.wake(sending, min(sending.retry_at, sending.deadline))

    def _wake(self, sending: Outgoing, now: float) -> None:
        if sending.ended:
            return
        known = self._remotes[sending.remote]
        deadline = sending.deadline
        if sending.state is State.WAITING:
            # Whoever only waits for others has time as long as these get answers (IPC-FLOW-3).
            deadline = max(deadline, known.heard_at + self._config.ack_timeout)
        if now >= deadline:
            self._give_up(sending, Code.SEND_TIMEOUT, now)  # IPC-SEND-13
        elif now >= sending.retry_at:
            self._statistics.retries += 1
            # A first retry may just have found a busy application (IPC-FLOW-5).
            if sending.attempts > 1 and not sending.held:
                known.window.shrink(now, self._config.min_backoff)
            self._transmit(sending, known, now)  # IPC-SEND-6
            if sending.state is State.DATA and not sending.held:
                self._send_scout(known, now)
        else:
            self._timers.wake(sending, min(sending.retry_at, deadline))

    def _send_scout(self, known: _Remote, now: float) -> None:
        """Let one message go past the window to a remote that has fallen silent (IPC-FLOW-7).

        Transfers that the remote's death broke off fill the window, and its successor ignores
        them; only a HEADER makes it say who it is.
        """
        scout = known.scout
        if (
            known.waiting
            and now >= known.heard_at + self._config.max_backoff
            and (scout is None or scout.state is not State.HEADER)
        ):
            known.scout = known.waiting.popitem(last=False)[0]
            self._start(known.scout, known, now)

    def handle_header_ack(self, ack: HeaderAck, remote: Hashable, now: float) -> None:
        """Go on with the first DATA, or with the HEADER as the answer wants it."""
        sending = self._sendings.get(ack.message_id)
        if sending is None or sending.state is not State.HEADER or sending.remote != remote:
            self._statistics.ignored += 1  # IPC-SEND-7
            return
        known = self._remotes[remote]
        known.heard_at = now
        if ack.code == Code.SUCCESS:
            # The ack of a predecessor may be late, and says nothing of who is there now.
            if not known.owner or known.owner[:INCARNATION] == sending.destination[:INCARNATION]:
                known.owner = sending.destination
            self._advance(sending, known, now)
        elif ack.code == Code.INVALID_DESTINATION:
            self._redirect(sending, known, decode_owner(ack.payload), now)
        elif ack.code == Code.PDU_TOO_LARGE:
            self._refragment(sending, known, decode_size(ack.payload), now)
        else:
            sending.refuse(ack.code)  # IPC-SEND-8
            self._finish(sending, now)

    def _redirect(self, sending: Outgoing, known: _Remote, owner: bytes | None, now: float) -> None:
        if owner is None or owner == sending.destination:
            self._statistics.ignored += 1
            return
        before = known.owner
        known.learn(owner, now, self._config.id_trust)  # IPC-SEND-9
        if now >= sending.deadline:
            # The timer is late. Whoever took the message may have forgotten it by now (IPC-CONF-2).
            self._give_up(sending, Code.SEND_TIMEOUT, now)
            return
        if not sending.redirect(owner):
            sending.refuse(Code.PEER_RESTARTED)
            self._finish(sending, now)
        elif sending.may_hurry:
            self._transmit(sending, known, now)
        if owner[:INCARNATION] != before[:INCARNATION]:
            self._end_broken_off(known, owner, now)

    def _end_broken_off(self, known: _Remote, owner: bytes, now: float) -> None:
        """Fail what a remote had begun to receive before it became another (IPC-ID-6).

        Its successor ignores the rest of such a message, and would be asked for the ack until the
        time is over, while others wait for the room.
        """
        for sending in list(known.sendings):
            if (
                sending.state is State.DATA
                and sending.destination[:INCARNATION] != owner[:INCARNATION]
            ):
                sending.refuse(Code.PEER_RESTARTED)
                self._finish(sending, now)

    def _refragment(self, sending: Outgoing, known: _Remote, size: int | None, now: float) -> None:
        if size is None or not MIN_PDU - OVERHEAD <= size < sending.piece:
            self._statistics.ignored += 1
            return
        known.max_data = min(known.max_data, size)
        before = sending.wire_id
        if not sending.refragment(size, self._fresh_id()):
            sending.refuse(Code.PDU_TOO_LARGE)
            self._finish(sending, now)
            return
        if sending.wire_id != before:
            del self._sendings[before]
            self._sendings[sending.wire_id] = sending
            self._renamed[sending.message_id] = sending.wire_id
        if sending.may_hurry:
            self._transmit(sending, known, now)

    def handle_data_ack(self, ack: DataAck, remote: Hashable, now: float) -> None:
        """Go on with the next DATA."""
        sending = self._sendings.get(ack.message_id)
        if (
            sending is None
            or sending.state is not State.DATA
            or sending.index != ack.sequence
            or sending.remote != remote
        ):
            if sending is not None and sending.remote == remote and _is_notice(ack, sending):
                self._hold(sending, now)
            else:
                self._statistics.ignored += 1  # IPC-SEND-11
            return
        known = self._remotes[remote]
        known.heard_at = now
        if ack.code == Code.SUCCESS:
            self._advance(sending, known, now)
        else:
            sending.refuse(ack.code)  # IPC-SEND-8
            self._finish(sending, now)

    def _hold(self, sending: Outgoing, now: float) -> None:
        """Wait for a receiver's application: not the way there is slow (IPC-SEND-18)."""
        known = self._remotes[sending.remote]
        known.heard_at = now
        sending.held = True
        self._schedule(sending, now)
        if sending.charge:
            if sending.attempts <= 2:  # a duplicate came there, so neither copy was lost
                known.window.grow(sending.charge)
            known.window.remove(sending.charge)
            sending.charge = 0
            self._start_waiting(known, now)

    def _advance(self, sending: Outgoing, known: _Remote, now: float) -> None:
        if sending.destination == known.owner:
            known.learn(known.owner, now, self._config.id_trust)
        if sending.attempts == 1:
            known.window.grow(sending.charge)
        if sending.advance(now + self._config.ack_timeout):
            self._finish(sending, now)
        else:
            self._transmit(sending, known, now)

    def _give_up(self, sending: Outgoing, code: int, now: float) -> None:
        """End a send from this side, and have the receiver end it too (IPC-SEND-14)."""
        if sending.state is State.WAITING:
            del self._remotes[sending.remote].waiting[sending]
        else:
            for pdu in sending.abort():
                self.transmits.append(Transmit(sending.remote, pdu, b"", None))
        if code == Code.SEND_TIMEOUT:
            sending.time_out()
        else:
            sending.reset(code)
        self._finish(sending, now)

    def _finish(self, sending: Outgoing, now: float) -> None:
        """A send has ended; whoever waited for its room goes on."""
        del self._sendings[sending.wire_id]
        self._renamed.pop(sending.message_id, None)
        sending.wake_at = NEVER
        known = self._remotes[sending.remote]
        del known.sendings[sending]
        if not known.sendings:
            self._idle[sending.remote] = None
        if sending.charge:
            known.window.remove(sending.charge)
            sending.charge = 0
        if sending.code == Code.SUCCESS:
            self._statistics.sent += 1
            ended = Ended(sending.message_id, sending.remote, Code.SUCCESS, True)
        else:
            self._statistics.failed += 1
            exposed = sending.exposed
            ended = Ended(sending.message_id, sending.remote, sending.code, exposed, known.why)
        self.ended.append(ended)  # IPC-SEND-17
        self._start_waiting(known, now)

    def _start_waiting(self, known: _Remote, now: float) -> None:
        waiting = known.waiting
        while waiting and not self._closed and known.window.fits(next(iter(waiting)).current_size):
            self._start(waiting.popitem(last=False)[0], known, now)

    def _remote(self, remote: Hashable) -> _Remote:
        known = self._remotes.get(remote)
        if known is None:
            # Make room by forgetting what has been idle for longest (IPC-FLOW-6).
            while self._idle and len(self._remotes) >= self._config.max_remotes:
                del self._remotes[self._idle.popitem(last=False)[0]]
            known = _Remote(self._config.window)
            self._remotes[remote] = known
        return known

    def _fresh_id(self) -> bytes:
        return self._chance.randbytes(ID_SIZE)


def _is_notice(ack: DataAck, sending: Outgoing) -> bool:
    """Whether an ack says that a message is whole and waits to be taken (IPC-RECV-20)."""
    return (
        ack.code == Code.SUCCESS
        and ack.sequence == sending.index + 1
        and sending.state is not State.WAITING
        and sending.is_last
    )
