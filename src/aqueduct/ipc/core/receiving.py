"""The receiving side of an endpoint: all incoming transfers, and deduplication.

An endpoint has an owner id and accepts only messages that were sent to it. The ids of processed
messages are kept until the owner id has changed and no retry of them can still arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from aqueduct.ipc.core.admission import ReceiveBudget
from aqueduct.ipc.core.events import Arrived, Randomness, Statistics, Transmit, Withdrawn
from aqueduct.ipc.core.incoming import IncomingState, IncomingTransfer
from aqueduct.ipc.core.pdu import (
    ID_SIZE,
    INCARNATION,
    Code,
    Data,
    DataAck,
    Header,
    HeaderAck,
    encode_size,
)
from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.protocol.timers import NEVER, Timers


class TransferReceiver:
    """All incoming transfers of an endpoint, and the ids of processed messages."""

    def __init__(
        self,
        config: IpcSettings,
        randomness: Randomness,
        timers: Timers,
        statistics: Statistics,
        now: float,
    ) -> None:
        self.max_data = config.max_data
        self.owner = b""
        self.owner_until = 0.0
        self.transmits: list[Transmit] = []
        self.arrived: list[Arrived | Withdrawn] = []
        self._config = config
        self._randomness = randomness
        self._timers = timers
        self._statistics = statistics
        self._incarnation = randomness.randbytes(INCARNATION)
        self._transfers: dict[bytes, IncomingTransfer] = {}
        # Messages that were aborted after their Arrived event.
        self._withdrawn: dict[bytes, IncomingTransfer] = {}
        self._budget = ReceiveBudget(config, self._displace)
        # Ids processed since the last change of the owner id, and those before, each set with the
        # time of the change that ended it. The value is the code of the ack, and the number of the
        # last PDU.
        self._processed: dict[bytes, tuple[int, int]] = {}
        self._processed_before: deque[tuple[float, dict[bytes, tuple[int, int]]]] = deque()
        self._count_before = 0
        self._closed = False
        self.change_owner(now)

    def change_owner(self, now: float) -> None:
        """Change the owner id, and drop the processed ids that have expired."""
        self.owner = self._incarnation + self._randomness.randbytes(ID_SIZE - INCARNATION)
        self.owner_until = now + self._config.owner_id_lifetime  # IPC-ID-1
        before = self._processed_before
        if self._processed:
            before.append((now, self._processed))
            self._count_before += len(self._processed)
            self._processed = {}
        while before and before[0][0] + self._config.receive_timeout <= now:  # IPC-RECV-2
            self._count_before -= len(before.popleft()[1])

    def take(self, message_id: bytes) -> bool:
        """Acknowledge a message that the application took; return False if it was withdrawn."""
        transfer = self._whole(message_id)
        if transfer is None:
            self._release_withdrawn(message_id)
            return False
        transfer.take()
        self._statistics.received += 1
        self._answer(transfer.remote, transfer.last_ack())  # IPC-RECV-8
        self._forget(transfer, Code.SUCCESS)
        return True

    def refuse(self, message_id: bytes) -> None:
        """Refuse a message on behalf of the application (IPC-RECV-14)."""
        transfer = self._whole(message_id)
        if transfer is None:
            self._release_withdrawn(message_id)
            return
        transfer.refuse()
        self._statistics.refused += 1
        self._answer(transfer.remote, transfer.last_ack(Code.PROCESSING_ERROR))
        self._forget(transfer, Code.PROCESSING_ERROR)

    def holds(self, message_id: bytes) -> bool:
        """Return whether a message that arrived can still be taken."""
        return self._whole(message_id) is not None

    def close(self) -> None:
        """Refuse complete messages, abort the others, and accept no new ones."""
        self._closed = True
        for message_id in list(self._withdrawn):
            self._release_withdrawn(message_id)
        for transfer in list(self._transfers.values()):
            if transfer.state is IncomingState.WHOLE:
                self.refuse(transfer.message_id)
            else:
                transfer.reset()  # IPC-RECV-13
                self._statistics.aborted += 1
                self._forget(transfer, Code.PROCESSING_ERROR)

    @property
    def processed(self) -> int:
        """How many processed ids are kept."""
        return len(self._processed) + self._count_before

    def leftovers(self) -> dict[str, int]:
        """Return what is held, by kind."""
        return {
            "incoming": len(self._transfers),
            "withdrawn": len(self._withdrawn),
            "bytes received": self._budget.held,
        }

    def handle_header(self, header: Header, remote: Hashable, now: float) -> None:
        """Process a HEADER: start a transfer, or acknowledge a duplicate."""
        message_id = header.message_id
        if self._answer_processed(message_id, 0, remote):
            return
        transfer = self._transfers.get(message_id)
        if transfer is not None:
            transfer.remote = remote  # the sender may have reconnected
            # IPC-RECV-3: a complete message is acknowledged when it is taken.
            if transfer.state is IncomingState.RECEIVING and transfer.expected == 1:
                self._statistics.duplicates += 1
                self._answer(remote, transfer.last_ack())
            elif (
                transfer.state is IncomingState.WHOLE
                and transfer.expected == 1
                and (header.payload or not header.length)  # without its data it starts an abort
            ):
                self._statistics.duplicates += 1
                self._answer(remote, transfer.notice())  # IPC-RECV-20
            else:
                self._statistics.ignored += 1
            return
        if header.destination != self.owner:  # IPC-RECV-6
            self._statistics.misdirected += 1
            code, payload = Code.INVALID_DESTINATION, self.owner
        elif header.length > self._config.max_message:  # IPC-RECV-4
            code, payload = Code.MESSAGE_TOO_LARGE, b""
        elif len(header.payload) > self.max_data:  # IPC-RECV-5
            code, payload = Code.PDU_TOO_LARGE, encode_size(self.max_data)
        else:
            self._begin(header, remote, now)
            return
        self._answer(remote, HeaderAck(message_id, code, payload).encode())

    def _begin(self, header: Header, remote: Hashable, now: float) -> None:
        config = self._config
        account = None
        if (
            not self._closed
            and header.message_id not in self._withdrawn
            and self.processed < config.max_processed
        ):
            size = min(len(header.payload), header.length)
            account = self._budget.admit(remote, size, now)
        if account is None:
            self._statistics.over_limit += 1  # IPC-FLOW-2
            return
        transfer = IncomingTransfer(  # IPC-RECV-18
            header.message_id,
            remote,
            self.owner,
            header.length,
            self.max_data,
            account,
            now,
            self._wake,
        )
        self._transfers[header.message_id] = transfer
        self._add(transfer, header.payload, now)

    def handle_data(self, data: Data, remote: Hashable, now: float) -> None:
        """Process a DATA: add a piece, or acknowledge a duplicate."""
        message_id = data.message_id
        sequence = data.sequence
        if self._answer_processed(message_id, sequence, remote):
            return
        transfer = self._transfers.get(message_id)
        if transfer is None:  # IPC-RECV-11
            self._statistics.ignored += 1
            return
        code, payload = Code.SUCCESS, b""
        transfer.remote = remote
        ahead = transfer.expected - sequence
        if ahead == 1 and data.payload and transfer.state is IncomingState.WHOLE:
            self._statistics.duplicates += 1
            self._answer(remote, transfer.notice())  # IPC-RECV-20
        elif ahead not in (0, 1) or (data.payload and transfer.state is IncomingState.WHOLE):
            self._statistics.ignored += 1  # IPC-RECV-12
        elif data.destination != transfer.owner:  # IPC-RECV-9
            self._statistics.misdirected += 1
            code, payload = Code.INVALID_DESTINATION, transfer.owner
        elif not data.payload:
            self._abort(transfer)
        elif ahead:
            self._statistics.duplicates += 1
            self._answer(remote, transfer.last_ack())  # IPC-RECV-12
        elif len(data.payload) > transfer.max_data:  # IPC-RECV-10
            code, payload = Code.PDU_TOO_LARGE, encode_size(transfer.max_data)
        elif not self._budget.add(transfer, min(len(data.payload), transfer.missing), now):
            self._statistics.over_limit += 1  # IPC-FLOW-2
        else:
            self._add(transfer, data.payload, now)
        if code:
            self._answer(remote, DataAck(message_id, sequence, code, payload).encode())

    def _add(self, transfer: IncomingTransfer, data: bytes, now: float) -> None:
        if transfer.add(data):
            if transfer.expected > 1:
                self._budget.complete(transfer)
            payload = transfer.payload()  # IPC-RECV-19
            self.arrived.append(Arrived(transfer.message_id, transfer.remote, payload))
            return
        if transfer.expected == 1:
            self._budget.begin(transfer)
        self._answer(transfer.remote, transfer.last_ack())  # IPC-RECV-7
        timeout = self._config.receive_timeout
        transfer.deadline = now + timeout
        if self._config.min_rate:  # IPC-RECV-21
            least = transfer.begun + timeout + transfer.arrived / self._config.min_rate
            transfer.deadline = min(transfer.deadline, least)
        self._timers.wake(transfer, transfer.deadline)

    def _wake(self, transfer: IncomingTransfer, now: float) -> None:
        if transfer.state is not IncomingState.RECEIVING:
            return
        if now < transfer.deadline:
            self._timers.wake(transfer, transfer.deadline)
            return
        transfer.time_out()  # IPC-RECV-13
        self._statistics.aborted += 1
        self._forget(transfer, Code.RECEIVE_TIMEOUT)

    def _displace(self, transfer: IncomingTransfer) -> None:
        """Abort a transfer that is behind, to make room for others (IPC-FLOW-9)."""
        transfer.time_out()
        self._statistics.aborted += 1
        self._statistics.displaced += 1
        self._forget(transfer, Code.RECEIVE_TIMEOUT)

    def _abort(self, transfer: IncomingTransfer) -> None:
        """Abort a transfer on behalf of its sender (IPC-RECV-15)."""
        if transfer.state is IncomingState.WHOLE:
            # IPC-FLOW-2: it counts until the application has released it.
            self._withdrawn[transfer.message_id] = transfer
            self.arrived.append(Withdrawn(transfer.message_id))
        transfer.abort()
        self._statistics.aborted += 1
        self._forget(transfer, Code.PROCESSING_ERROR)

    def _release_withdrawn(self, message_id: bytes) -> None:
        """Release a withdrawn message that the application no longer uses."""
        transfer = self._withdrawn.pop(message_id, None)
        if transfer is not None:
            self._budget.release(transfer)

    def _whole(self, message_id: bytes) -> IncomingTransfer | None:
        """Return the complete transfer of an id; the sender may have withdrawn and restarted it."""
        transfer = self._transfers.get(message_id)
        return transfer if transfer is not None and transfer.state is IncomingState.WHOLE else None

    def _forget(self, transfer: IncomingTransfer, code: int) -> None:
        """Remove a transfer; keep its id, and the ack for duplicates."""
        del self._transfers[transfer.message_id]
        transfer.wake_at = NEVER
        if not self._withdrawn or self._withdrawn.get(transfer.message_id) is not transfer:
            self._budget.release(transfer)
        self._processed[transfer.message_id] = (code, transfer.expected - 1)

    def _answer_processed(self, message_id: bytes, index: int, remote: Hashable) -> bool:
        """Acknowledge a duplicate of a processed message; False if it is none (IPC-RECV-16)."""
        answer = self._processed.get(message_id)
        if answer is None:
            for _, ids in self._processed_before:
                answer = ids.get(message_id)
                if answer is not None:
                    break
            else:
                return False
        code, last = answer
        self._statistics.duplicates += 1
        if code:
            last = index  # the ack of an aborted message names the PDU that asks for it
        if last:
            self._answer(remote, DataAck(message_id, last, code).encode())
        else:
            self._answer(remote, HeaderAck(message_id, code).encode())
        return True

    def _answer(self, remote: Hashable, ack: bytes) -> None:
        """Send an ack, which is never retransmitted (IPC-RECV-17)."""
        self.transmits.append(Transmit(remote, ack, b"", None))
