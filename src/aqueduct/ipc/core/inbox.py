"""All messages on their way in, and those that are over: nothing is taken twice.

An endpoint has an owner id, and takes only messages that were sent to it. Processed messages are
remembered until the id has changed and no retry of them can come any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from aqueduct.ipc.core.admission import Room
from aqueduct.ipc.core.config import Config
from aqueduct.ipc.core.events import Arrived, Chance, Statistics, Transmit, Withdrawn
from aqueduct.ipc.core.incoming import Incoming, State
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
from aqueduct.protocol.timers import NEVER, Timers


class Inbox:
    """The receiving side of an endpoint."""

    def __init__(
        self, config: Config, chance: Chance, timers: Timers, statistics: Statistics, now: float
    ) -> None:
        self.max_data = config.max_data
        self.owner = b""
        self.owner_until = 0.0
        self.transmits: list[Transmit] = []
        self.arrived: list[Arrived | Withdrawn] = []
        self._config = config
        self._chance = chance
        self._timers = timers
        self._statistics = statistics
        self._incarnation = chance.randbytes(INCARNATION)
        self._receivings: dict[bytes, Incoming] = {}
        # Messages that were aborted after the application was told of them.
        self._withdrawn: dict[bytes, Incoming] = {}
        self._room = Room(config, self._displace)
        # Ids processed since the owner id last changed, and those from before with the time of that
        # change. The value is the code to answer with, and the number of the last PDU.
        self._processed: dict[bytes, tuple[int, int]] = {}
        self._processed_before: deque[tuple[float, dict[bytes, tuple[int, int]]]] = deque()
        self._count_before = 0
        self._closed = False
        self.change_owner(now)

    def change_owner(self, now: float) -> None:
        """Take a new owner id, and forget what was processed long enough ago."""
        self.owner = self._incarnation + self._chance.randbytes(ID_SIZE - INCARNATION)
        self.owner_until = now + self._config.owner_id_lifetime  # IPC-ID-1
        before = self._processed_before
        if self._processed:
            before.append((now, self._processed))
            self._count_before += len(self._processed)
            self._processed = {}
        while before and before[0][0] + self._config.receive_timeout <= now:  # IPC-RECV-2
            self._count_before -= len(before.popleft()[1])

    def take(self, message_id: bytes) -> bool:
        """The application has the message: tell its sender. False if it was withdrawn."""
        receiving = self._whole(message_id)
        if receiving is None:
            self._let_go(message_id)
            return False
        receiving.take()
        self._statistics.received += 1
        self._answer(receiving.remote, receiving.last_ack())  # IPC-RECV-8
        self._forget(receiving, Code.SUCCESS)
        return True

    def refuse(self, message_id: bytes) -> None:
        """The application cannot make use of the message: tell its sender (IPC-RECV-14)."""
        receiving = self._whole(message_id)
        if receiving is None:
            self._let_go(message_id)
            return
        receiving.refuse()
        self._statistics.refused += 1
        self._answer(receiving.remote, receiving.last_ack(Code.PROCESSING_ERROR))
        self._forget(receiving, Code.PROCESSING_ERROR)

    def holds(self, message_id: bytes) -> bool:
        """Whether a message that arrived can still be taken."""
        return self._whole(message_id) is not None

    def close(self) -> None:
        """Refuse what was not taken, give up what has not arrived, begin nothing any more."""
        self._closed = True
        for message_id in list(self._withdrawn):
            self._let_go(message_id)
        for receiving in list(self._receivings.values()):
            if receiving.state is State.WHOLE:
                self.refuse(receiving.message_id)
            else:
                receiving.reset()  # IPC-RECV-13
                self._statistics.aborted += 1
                self._forget(receiving, Code.PROCESSING_ERROR)

    @property
    def processed(self) -> int:
        """How many processed ids are remembered."""
        return len(self._processed) + self._count_before

    def leftovers(self) -> dict[str, int]:
        """What is still held, by kind."""
        return {
            "receivings": len(self._receivings),
            "withdrawn": len(self._withdrawn),
            "bytes received": self._room.held,
        }

    def handle_header(self, header: Header, remote: Hashable, now: float) -> None:
        """Begin a message, or answer for one that has begun."""
        message_id = header.message_id
        if self._answer_processed(message_id, 0, remote):
            return
        receiving = self._receivings.get(message_id)
        if receiving is not None:
            receiving.remote = remote  # the sender may have reconnected
            # IPC-RECV-3: the ack of a message that is whole goes out when it is taken.
            if receiving.state is State.RECEIVING and receiving.expected == 1:
                self._statistics.duplicates += 1
                self._answer(remote, receiving.last_ack())
            elif (
                receiving.state is State.WHOLE
                and receiving.expected == 1
                and (header.payload or not header.length)  # without its data it begins an abort
            ):
                self._statistics.duplicates += 1
                self._answer(remote, receiving.notice())  # IPC-RECV-20
            else:
                self._statistics.ignored += 1
            return
        if header.destination != self.owner:  # IPC-RECV-6
            self._statistics.misdirected += 1
            code, told = Code.INVALID_DESTINATION, self.owner
        elif header.length > self._config.max_message:  # IPC-RECV-4
            code, told = Code.MESSAGE_TOO_LARGE, b""
        elif len(header.payload) > self.max_data:  # IPC-RECV-5
            code, told = Code.PDU_TOO_LARGE, encode_size(self.max_data)
        else:
            self._begin(header, remote, now)
            return
        self._answer(remote, HeaderAck(message_id, code, told).encode())

    def _begin(self, header: Header, remote: Hashable, now: float) -> None:
        config = self._config
        account = None
        if (
            not self._closed
            and header.message_id not in self._withdrawn
            and self.processed < config.max_processed
        ):
            size = min(len(header.payload), header.length)
            account = self._room.admit(remote, size, now)
        if account is None:
            self._statistics.crowded_out += 1  # IPC-FLOW-2
            return
        receiving = Incoming(  # IPC-RECV-18
            header.message_id,
            remote,
            self.owner,
            header.length,
            self.max_data,
            account,
            now,
            self._wake,
        )
        self._receivings[header.message_id] = receiving
        self._add(receiving, header.payload, now)

    def handle_data(self, data: Data, remote: Hashable, now: float) -> None:
        """Go on with a message, or answer for one that is over."""
        message_id = data.message_id
        sequence = data.sequence
        if self._answer_processed(message_id, sequence, remote):
            return
        receiving = self._receivings.get(message_id)
        if receiving is None:  # IPC-RECV-11
            self._statistics.ignored += 1
            return
        code, told = Code.SUCCESS, b""
        receiving.remote = remote
        ahead = receiving.expected - sequence
        if ahead == 1 and data.payload and receiving.state is State.WHOLE:
            self._statistics.duplicates += 1
            self._answer(remote, receiving.notice())  # IPC-RECV-20
        elif ahead not in (0, 1) or (data.payload and receiving.state is State.WHOLE):
            self._statistics.ignored += 1  # IPC-RECV-12
        elif data.destination != receiving.owner:  # IPC-RECV-9
            self._statistics.misdirected += 1
            code, told = Code.INVALID_DESTINATION, receiving.owner
        elif not data.payload:
            self._abort(receiving)
        elif ahead:
            self._statistics.duplicates += 1
            self._answer(remote, receiving.last_ack())  # IPC-RECV-12
        elif len(data.payload) > receiving.max_data:  # IPC-RECV-10
            code, told = Code.PDU_TOO_LARGE, encode_size(receiving.max_data)
        elif not self._room.add(receiving, min(len(data.payload), receiving.missing), now):
            self._statistics.crowded_out += 1  # IPC-FLOW-2
        else:
            self._add(receiving, data.payload, now)
        if code:
            self._answer(remote, DataAck(message_id, sequence, code, told).encode())

    def _add(self, receiving: Incoming, data: bytes, now: float) -> None:
        if receiving.add(data):
            if receiving.expected > 1:
                self._room.complete(receiving)
            payload = receiving.payload()  # IPC-RECV-19
            self.arrived.append(Arrived(receiving.message_id, receiving.remote, payload))
            return
        if receiving.expected == 1:
            self._room.begin(receiving)
        self._answer(receiving.remote, receiving.last_ack())  # IPC-RECV-7
        timeout = self._config.receive_timeout
        receiving.deadline = now + timeout
        if self._config.min_rate:  # IPC-RECV-21
            least = receiving.begun + timeout + receiving.arrived / self._config.min_rate
            receiving.deadline = min(receiving.deadline, least)
        self._timers.wake(receiving, receiving.deadline)

    def _wake(self, receiving: Incoming, now: float) -> None:
        if receiving.state is not State.RECEIVING:
            return
        if now < receiving.deadline:
            self._timers.wake(receiving, receiving.deadline)
            return
        receiving.time_out()  # IPC-RECV-13
        self._statistics.aborted += 1
        self._forget(receiving, Code.RECEIVE_TIMEOUT)

    def _displace(self, receiving: Incoming) -> None:
        """Abort a transfer that is behind, to make room for others (IPC-FLOW-9)."""
        receiving.time_out()
        self._statistics.aborted += 1
        self._statistics.displaced += 1
        self._forget(receiving, Code.RECEIVE_TIMEOUT)

    def _abort(self, receiving: Incoming) -> None:
        """The sender has given it up (IPC-RECV-15)."""
        if receiving.state is State.WHOLE:
            # IPC-FLOW-2: it counts until the application has let go of it.
            self._withdrawn[receiving.message_id] = receiving
            self.arrived.append(Withdrawn(receiving.message_id))
        receiving.abort()
        self._statistics.aborted += 1
        self._forget(receiving, Code.PROCESSING_ERROR)

    def _let_go(self, message_id: bytes) -> None:
        """The application no longer has a message that was withdrawn, if it is one."""
        receiving = self._withdrawn.pop(message_id, None)
        if receiving is not None:
            self._room.release(receiving)

    def _whole(self, message_id: bytes) -> Incoming | None:
        """The message to be taken; a sender may have withdrawn it and begun anew with its id."""
        receiving = self._receivings.get(message_id)
        return receiving if receiving is not None and receiving.state is State.WHOLE else None

    def _forget(self, receiving: Incoming, code: int) -> None:
        """All that stays of it is its id, and the answer to whoever asks again."""
        del self._receivings[receiving.message_id]
        receiving.wake_at = NEVER
        if not self._withdrawn or self._withdrawn.get(receiving.message_id) is not receiving:
            self._room.release(receiving)
        self._processed[receiving.message_id] = (code, receiving.expected - 1)

    def _answer_processed(self, message_id: bytes, index: int, remote: Hashable) -> bool:
        """Answer for a message that is over, if it is one (IPC-RECV-16)."""
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
            last = index  # the answer to a message that was aborted is made as it is asked for
        if last:
            self._answer(remote, DataAck(message_id, last, code).encode())
        else:
            self._answer(remote, HeaderAck(message_id, code).encode())
        return True

    def _answer(self, remote: Hashable, ack: bytes) -> None:
        """Send an ack, and never mind what becomes of it (IPC-RECV-17)."""
        self.transmits.append(Transmit(remote, ack, b"", None))
