"""Faults planted in the core of ScalableIPC, one at a time, which the simulator must find."""

from __future__ import annotations

from tests.sim.planting import Mutant

IPC_MUTANTS = [
    # At most once
    Mutant(
        "processed ids are dropped at once when the owner id changes",
        "ipc/core/receiving.py",
        "        while before and before[0][0] + self._config.receive_timeout <= now:",
        "        while before:",
    ),
    Mutant(
        "processed messages are not looked up",
        "ipc/core/receiving.py",
        "        if self._answer_processed(message_id, 0, remote):\n            return\n",
        "",
    ),
    Mutant(
        "a duplicate of a complete message starts it again",
        "ipc/core/receiving.py",
        "        transfer = self._transfers.get(message_id)\n        if transfer is not None:\n"
        "            transfer.remote = remote",
        "        transfer = self._transfers.get(message_id)\n"
        "        if transfer is not None and transfer.state is not IncomingState.WHOLE:\n"
        "            transfer.remote = remote",
    ),
    Mutant(
        "an exposed message is redirected to another life",
        "ipc/core/outgoing.py",
        "        if self.exposed and owner[:INCARNATION] != self.destination[:INCARNATION]:\n",
        "        if False:\n",
    ),
    Mutant(
        "a HEADER does not expose a message",
        "ipc/core/outgoing.py",
        "        if not self.guessed:\n            self.exposed = True\n",
        "",
    ),
    Mutant(
        "the last piece does not expose a message",
        "ipc/core/outgoing.py",
        "            if start + piece >= len(payload):\n                self.exposed = True\n",
        "",
    ),
    Mutant(
        "a new life has the owner ids of the previous one",
        "ipc/core/receiving.py",
        "        self._incarnation = randomness.randbytes(INCARNATION)\n",
        "        self._incarnation = bytes(range(INCARNATION))\n",
    ),
    # Success means taken
    Mutant(
        "the last PDU is acknowledged before the message is taken",
        "ipc/core/receiving.py",
        "            payload = transfer.payload()",
        "            self._answer(transfer.remote, transfer.last_ack())\n"
        "            payload = transfer.payload()",
    ),
    Mutant(
        "a refused message is acknowledged as if taken",
        "ipc/core/receiving.py",
        "transfer.last_ack(Code.PROCESSING_ERROR))",
        "transfer.last_ack())",
    ),
    Mutant(
        "an ack is accepted from any remote",
        "ipc/core/sending.py",
        "            or transfer.state is not OutgoingState.HEADER\n"
        "            or transfer.remote != remote\n",
        "            or transfer.state is not OutgoingState.HEADER\n",
    ),
    Mutant(
        "a DATA_ACK with any number is accepted",
        "ipc/core/sending.py",
        "            or transfer.index != ack.sequence\n",
        "",
    ),
    Mutant(
        "the answer to an aborted message says success",
        "ipc/core/receiving.py",
        "        code, last = answer\n",
        "        code, last = 0, answer[1]\n",
    ),
    Mutant(
        "a notice counts as success",
        "ipc/core/sending.py",
        "        transfer.held = True\n        self._schedule(transfer, now)\n",
        "        self._advance(transfer, known, now)\n        return\n",
    ),
    Mutant(
        "a notice is sent for an incomplete message",
        "ipc/core/receiving.py",
        "                self._answer(remote, transfer.last_ack())\n            elif (",
        "                self._answer(remote, transfer.notice())\n            elif (",
    ),
    # Bytes
    Mutant(
        "data beyond the end of a message is appended",
        "ipc/core/incoming.py",
        "            data = data[: self.missing]  # IPC-RECV-1\n",
        "            self.missing = len(data)\n",
    ),
    Mutant(
        "a refragmented message keeps its id",
        "ipc/core/outgoing.py",
        "        if not self.exposed:\n            self.wire_id = fresh_id\n",
        "",
    ),
    Mutant(
        "a refragmented message continues at the wrong offset",
        "ipc/core/outgoing.py",
        "            start = self.index * piece\n",
        "            start = self.index * piece + 2 * self.corrections\n",
    ),
    Mutant(
        "a duplicate piece is appended",
        "ipc/core/receiving.py",
        "            self._answer(remote, transfer.last_ack())  # IPC-RECV-12\n",
        "            self._add(transfer, data.payload, now)\n",
    ),
    Mutant(
        "the maximum PDU size of a receiver is not remembered",
        "ipc/core/sending.py",
        "        known.max_data = min(known.max_data, size)\n",
        "",
    ),
    # Ends
    Mutant(
        "an abort is ignored",
        "ipc/core/receiving.py",
        "            self._abort(transfer)\n",
        "            self._statistics.ignored += 1\n",
    ),
    Mutant(
        "the receive timer is never set",
        "ipc/core/receiving.py",
        "        self._timers.wake(transfer, transfer.deadline)\n\n    def _wake",
        "\n    def _wake",
    ),
    Mutant(
        "the window is not released at the end of a send",
        "ipc/core/sending.py",
        "            known.window.remove(transfer.charge)\n"
        "            transfer.charge = 0\n        if",
        "            transfer.charge = 0\n        if",
    ),
    Mutant(
        "the window is not released for a held message",
        "ipc/core/sending.py",
        "            known.window.remove(transfer.charge)\n"
        "            transfer.charge = 0\n            ",
        "            transfer.charge = 0\n            ",
    ),
    Mutant(
        "queued transfers are never started",
        "ipc/core/sending.py",
        "        while waiting and not self._closed and known",
        "        while waiting and self._closed and known",
    ),
    Mutant(
        "a send that timed out is reported twice",
        "ipc/core/sending.py",
        "            transfer.time_out()\n",
        "            transfer.time_out()\n"
        "            self.ended.append(Ended(transfer.message_id, transfer.remote, code, True))\n",
    ),
    Mutant(
        "the bytes of an ended message still count",
        "ipc/core/admission.py",
        "        self.held -= arrived\n",
        "",
    ),
    Mutant(
        "the bytes of a withdrawn message count forever",
        "ipc/core/receiving.py",
        "            self._budget.release(transfer)\n        self._processed",
        "            self._budget.release(transfer)\n        else:\n"
        "            self._budget.held += transfer.arrived\n        self._processed",
    ),
    # Budget
    Mutant(
        "announced bytes count as arrived",
        "ipc/core/admission.py",
        "            account = self._open(remote)\n        if (\n",
        "            account = self._open(remote)\n"
        "        announced = sum(each.missing for each in self._partial.values())\n"
        "        if announced + size > self._max_held - self.held:\n"
        "            return None\n        if (\n",
    ),
    Mutant(
        "a byte keeps a transfer alive",
        "ipc/core/receiving.py",
        "            transfer.deadline = min(transfer.deadline, least)\n",
        "            pass\n",
    ),
    Mutant(
        "more bytes are held than the limit",
        "ipc/core/admission.py",
        "        while not self._fits(account, size, transfer):\n",
        "        while False:\n",
    ),
    Mutant(
        "more messages are started than the limit",
        "ipc/core/admission.py",
        "            account.count >= self._max_count - self.count\n",
        "            account.count > self._max_count - self.count\n",
    ),
    Mutant(
        "a displaced transfer still counts",
        "ipc/core/admission.py",
        "                self._displace(other)\n",
        "                self._displace(other)\n                self.held += other.arrived\n",
    ),
    Mutant(
        "sends to an unreachable remote continue",
        "ipc/core/sending.py",
        "            self._give_up(transfer, Code.APPLICATION, now)\n",
        "            pass\n",
    ),
    # Timing
    Mutant(
        "an ack does not reset the deadline",
        "ipc/core/outgoing.py",
        "        self.attempts = 0\n        self.deadline = deadline\n",
        "        self.attempts = 0\n",
    ),
    Mutant(
        "a PDU is retransmitted without backoff",
        "ipc/core/sending.py",
        "        transfer.retry_at = now + backoff\n",
        "        transfer.retry_at = now + backoff / 8\n",
    ),
    Mutant(
        "a notice extends the deadline",
        "ipc/core/sending.py",
        "        transfer.held = True\n",
        "        transfer.held = True\n"
        "        transfer.deadline = now + self._config.ack_timeout\n",
    ),
    Mutant(
        "a held message has the usual backoff",
        "ipc/core/sending.py",
        "            backoff = max(backoff, config.held_backoff)\n",
        "            pass\n",
    ),
    Mutant(
        "a held message is never retransmitted",
        "ipc/core/sending.py",
        "            backoff = max(backoff, config.held_backoff)\n",
        "            backoff = 1e9\n",
    ),
    Mutant(
        "a notice is accepted from any remote",
        "ipc/core/sending.py",
        "            if transfer is not None and transfer.remote == remote and _is_notice",
        "            if transfer is not None and _is_notice",
    ),
    Mutant(
        "a PDU is never retransmitted",
        "ipc/core/sending.py",
        "        elif now >= transfer.retry_at:\n",
        "        elif now >= transfer.retry_at + 1e9:\n",
    ),
    Mutant(
        "an owner id is trusted forever",
        "ipc/core/sending.py",
        "        if known.owner and now < known.trusted_until:",
        "        if known.owner:",
    ),
    Mutant(
        "an owner id is trusted although the remote has failed",
        "ipc/core/sending.py",
        "            known.trusted_until = 0.0  # the next",
        "            pass  # the next",
    ),
    Mutant(
        "the owner id never expires",
        "ipc/core/exchange.py",
        "            self._receiver.change_owner(now)\n        for sleeper",
        "            self._receiver.owner_until = now + 1\n        for sleeper",
    ),
]
