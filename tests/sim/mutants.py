"""Faults planted in the core, one at a time, which the simulator must find."""

from __future__ import annotations

from tests.sim.planting import Mutant

MUTANTS = [
    # Acks
    Mutant(
        "an ack is lost",
        "protocol/receiver.py",
        "            self._acks.add(first, first + count)\n",
        "            self._acks.add(first + (first == 3), first + count)\n",
    ),
    Mutant(
        "an ack covers one message too many",
        "protocol/receiver.py",
        "            self._acks.add(first, first + count)\n",
        "            self._acks.add(max(first - 1, 0), first + count)\n",
    ),
    Mutant(
        "acks are not flushed before CLOSE_RECEIVER",
        "protocol/receiver.py",
        "        self._send_acks(datagrams.decide(now, everything=True) "
        "if datagrams is not None else ())\n"
        "        control = self._control_stream()\n",
        "        control = self._control_stream()\n",
    ),
    Mutant(
        "acks wait for a timer under load",
        "protocol/receiver.py",
        "        if self._ack_count >= self._context.config.ack_every:\n",
        "        if self._ack_count >= 8 * self._context.config.ack_every:\n",
    ),
    Mutant(
        "a message is reported delivered while its channel is pending",
        "protocol/sender.py",
        "        if self.node.accessible and fresh:\n",
        "        if fresh:\n",
    ),
    # Datagrams
    Mutant(
        "a datagram is accepted after its nack",
        "protocol/receiver.py",
        "        late = decided - run.first\n",
        "        late = 0\n",
    ),
    Mutant(
        "datagrams are nacked without a deadline",
        "protocol/receiver.py",
        "            max(2 * self._context.rtt, config.receipt_deadline_min), "
        "config.receipt_deadline_max\n",
        "            0.001, config.receipt_deadline_max\n",
    ),
    Mutant(
        "datagrams are not announced before FINISH_SENDER",
        "protocol/sender.py",
        "            stream = self._control_stream()\n            self._announce()\n",
        "            stream = self._control_stream()\n",
    ),
    Mutant(
        "a nacked datagram keeps its credit",
        "protocol/sender.py",
        "        self._release(nacked_bytes)  # AQ-FLOW-6\n",
        "",
    ),
    Mutant(
        "a dropped datagram keeps its credit in the window",
        "protocol/sender.py",
        "                self._release(self.datagrams.forgo(number))\n",
        "                self.datagrams.forgo(number)\n",
    ),
    Mutant(
        "a datagram is filled past what its packet carries",
        "protocol/outgoing.py",
        "and last.length + len(frame) <= self.max_datagram",
        "and last.length <= self.max_datagram",
    ),
    Mutant(
        "the packets of the path become smaller, and datagrams do not",
        "protocol/connection.py",
        "        self._context.out.max_datagram = min(size, self.config.max_datagram)\n",
        "        out = self._context.out\n"
        "        out.max_datagram = max(out.max_datagram, min(size, self.config.max_datagram))\n",
    ),
    # Modes
    Mutant(
        "a sender that was received starts ordered whatever its channel's headers say",
        "protocol/sender.py",
        "            self.mode = hinted_mode(headers)\n",
        "            pass\n",
    ),
    Mutant(
        "the mode of a channel is lost when its sender is sent away",
        "protocol/connection.py",
        "with_hint(one.headers, one.mode) if one.give is Give.SENDER else one.headers",
        "one.headers",
    ),
    Mutant(
        "the mode of a channel is lost when its receiver is sent away",
        "protocol/channels.py",
        "Ownership.APPLICATION, mode\n",
        "Ownership.APPLICATION, Mode.ORDERED\n",
    ),
    Mutant(
        "a mode that was set has no effect",
        "protocol/connection.py",
        "            half.set_mode(mode)\n",
        "            pass\n",
    ),
    # Lineage
    Mutant(
        "a loss spreads one level only",
        "protocol/lineage.py",
        "        if children:\n",
        "        if children and len(above) < 2:\n",
    ),
    Mutant(
        "channels of acked messages survive the loss of their channel",
        "protocol/lineage.py",
        "        if node.kept is not None:\n            children.extend(node.kept)\n",
        "        if node.kept is not None:\n",
    ),
    Mutant(
        "accessibility spreads one level only",
        "protocol/lineage.py",
        "            found.extend(node.kept)\n            node.kept = None\n    return found\n",
        "            for child in node.kept:\n                child.accessible = True\n"
        "            node.kept = None\n    return found\n",
    ),
    Mutant(
        "a lost channel is not forgotten at the peer",
        "protocol/channels.py",
        "            if node.known:\n                self._forgetting.send(node.channel, now)",
        "            if False:\n                self._forgetting.send(node.channel, now)",
    ),
    Mutant(
        "FORGET_CHANNEL is repeated at once",
        "protocol/forgetting.py",
        "        if channel in self._sent:\n            return False\n",
        "",
    ),
    Mutant(
        "a ghost is never answered",
        "protocol/forgetting.py",
        "        if not ended and self.send(channel, now):\n",
        "        if ended:\n            return\n        if self.send(channel, now):\n",
    ),
    Mutant(
        "a ghost is answered at once, so that the answer overtakes the last acks",
        "protocol/forgetting.py",
        "        if not ended and self.send(channel, now):\n",
        "        if self.send(channel, now):\n",
    ),
    Mutant(
        "a ghost is answered before its channel is quiet",
        "protocol/forgetting.py",
        "        waiting[channel] = (first, now)\n        waiting.move_to_end(channel)\n",
        "        waiting[channel] = (first, first)\n",
    ),
    Mutant(
        "a ROUTE_TO that comes later than FORGET_CHANNEL is not answered",
        "protocol/forgetting.py",
        "        waiting = self._waiting\n        first = now\n",
        "        if channel in self._sent:\n            return\n"
        "        waiting = self._waiting\n        first = now\n",
    ),
    Mutant(
        "a ghost of a channel whose half is still in the table is never answered",
        "protocol/channels.py",
        "                if half.is_over() and channel != ENTRYPOINT:\n",
        "                if False:\n",
        seeds="1400:3400",
    ),
    Mutant(
        "a receiver waits for ever for an announcement",
        "protocol/receiver.py",
        "                self._limit_wait(now)\n",
        "",
    ),
    Mutant(
        "a forgotten sender does not wait for the acks that were overtaken",
        "protocol/channels.py",
        "half.owner is Ownership.APPLICATION:\n            half.handle_forget(now)",
        "half.owner is None:\n            half.handle_forget(now)",
    ),
    Mutant(
        "a forgotten sender goes on",
        "protocol/sender.py",
        "        self._stop_sending(StreamCode.FORGOTTEN)\n",
        "",
        seeds="1400:3400",
    ),
    Mutant(
        "ended channels are not remembered",
        "protocol/channels.py",
        "        ended = channel in self._tombstones\n",
        "        ended = False\n",
    ),
    Mutant(
        "a ROUTE_TO is not answered",
        "protocol/channels.py",
        "        half.route_back(now + min(self._context.config.ack_delay, ROUTE_DELAY))\n",
        "",
    ),
    # Leaving
    Mutant(
        "a client that leaves does not wait for the end of the entrypoint",
        "protocol/connection.py",
        "        if self._is_leaving and ENTRYPOINT not in self._channels.halves:\n",
        "        if self._is_leaving:\n",
    ),
    Mutant(
        "a client that leaves never closes",
        "protocol/connection.py",
        "            self._is_leaving = True\n",
        "            self._is_leaving = False\n",
    ),
    # Draining
    Mutant(
        "a receiver that is stopped goes on",
        "protocol/receiver.py",
        "            self._move(ReceiverInput.CLOSE)\n            self._end = End.STOPPED\n",
        "            self._end = End.STOPPED\n",
    ),
    Mutant(
        "a receiver that is stopped drops what has arrived",
        "protocol/receiver.py",
        "            self._end = End.STOPPED\n",
        "            self._end = End.STOPPED\n            self._drop_queue()\n",
    ),
    # Credit
    Mutant(
        "DEQUEUED is not sent when the queue runs empty",
        "protocol/receiver.py",
        "        elif self._queue is None:\n            self._flush_soon(now)\n",
        "",
    ),
    Mutant(
        "DEQUEUED counts one byte too many",
        "protocol/receiver.py",
        "Dequeued(size).encode()",
        "Dequeued(size + 1).encode()",
    ),
    Mutant(
        "a sender ignores the channel window",
        "protocol/flow.py",
        "        return outstanding + size <= limit or outstanding == 0  # AQ-FLOW-3\n",
        "        return True\n",
    ),
    Mutant(
        "a sender counts what is taken twice",
        "protocol/flow.py",
        "        window.remove(size, window.spare(left, size))\n",
        "        window.remove(2 * size, window.spare(left, size))\n",
    ),
    Mutant(
        "a sender that waits for room is not woken",
        "protocol/sender.py",
        "            self._emit(Writable(self.channel))\n",
        "            pass\n",
    ),
    Mutant(
        "a cancelled sender keeps its credit",
        "protocol/sender.py",
        "        self.outstanding = self._credit.release(self.outstanding, self.outstanding)\n",
        "        self.outstanding = 0\n",
    ),
    Mutant(
        "a sender does not use its channel's reserve",
        "protocol/flow.py",
        "        return size if size < free else free",
        "        return 0",
    ),
    Mutant(
        "a reserve is never used up",
        "protocol/flow.py",
        "        free = self.reserve - outstanding\n",
        "        free = self.reserve\n",
    ),
    Mutant(
        "the reserves of all channels are not bounded",
        "protocol/flow.py",
        "            limit = self.base + min(self.reserved + spare, self.pool)\n",
        "            limit = self.base + self.reserved + spare\n",
    ),
    Mutant(
        "a reserve counts by the limits that held when it was used",
        "protocol/flow.py",
        "            window.add(0, min(used, window.reserve) - min(used, before))\n",
        "            pass\n",
    ),
    Mutant(
        "an ended receiver keeps its reserve",
        "protocol/receiver.py",
        "        self._credit.discard(self.channel, queued, self.unreported, self.reserved)\n",
        "        self._credit.discard(self.channel, queued, self.unreported, 0)\n",
    ),
    Mutant(
        "a lost channel keeps its reserve",
        "protocol/flow.py",
        "            self._window.remove(size, spare)\n",
        "            self._window.remove(size, 0)\n",
    ),
    # Ends
    Mutant(
        "a finish does not wait for messages in flight",
        "protocol/receiver.py",
        "            if self._arrived != self._total or",
        "            if self._arrived < self._total - 1 or",
    ),
    Mutant(
        "a finish does not wait for datagrams to be decided",
        "protocol/receiver.py",
        " or (datagrams is not None and not datagrams.settled()):",
        ":",
    ),
    Mutant(
        "a cancel resets nothing",
        "protocol/sender.py",
        "        self._reset_message_streams(StreamCode.CANCELLED)\n        out.drop_datagrams",
        "        out.drop_datagrams",
    ),
    Mutant(
        "a cancel does not reset the streams of unordered messages",
        "protocol/sender.py",
        "            for stream in self._singles.values():\n"
        "                out.reset(stream, code)\n",
        "",
    ),
    Mutant(
        "prefetched messages are received after a cancel",
        "runtime/receive_port.py",
        "            self._discard()  # AQ-CANCEL-5\n",
        "            pass\n",
        seeds="0:3000",
    ),
    Mutant(
        "halves in prefetched messages are not ended by a cancel",
        "runtime/receive_port.py",
        "                self.driver.abandon(entry)\n",
        "                pass\n",
        seeds="0:3000",
    ),
    Mutant(
        "a cancel keeps the receiver's queue",
        "protocol/receiver.py",
        "        self._end = End.CANCELLED\n        self._emit_end(End.CANCELLED)\n"
        "        return self._drop_queue()\n",
        "        self._end = End.CANCELLED\n        return []\n",
    ),
    Mutant(
        "halves in dropped messages leak",
        "protocol/channels.py",
        "        waiting = deque(dropped)\n",
        "        waiting = deque(dropped[1:])\n",
    ),
    Mutant(
        "a oneshot sender in unreliable mode does not finish itself",
        "protocol/sender.py",
        "                if self.oneshot:\n                    self.finish(now)\n",
        "",
    ),
    Mutant(
        "senders in dropped messages leak",
        "protocol/channels.py",
        "                    half.owner = Ownership.RELEASED\n"
        "                    half.cancel(now)\n",
        "                    half.owner = Ownership.RELEASED\n",
    ),
    Mutant(
        "datagrams of a cancelled sender are never announced",
        "protocol/sender.py",
        "            self._announce(always=True)\n",
        "",
    ),
    Mutant(
        "CLOSE_RECEIVER loses no channels",
        "protocol/sender.py",
        "        self._stop(StreamCode.CANCELLED)\n        return self.node.release_all()\n",
        "        self._stop(StreamCode.CANCELLED)\n        self.node.release_all()\n"
        "        return []\n",
    ),
    Mutant(
        "datagrams acked on a pending channel are never reported",
        "protocol/sender.py",
        "                self.datagrams.keep_acked(good)\n",
        "                pass\n",
    ),
    Mutant(
        "messages that arrived before the handle are not reported",
        "protocol/receiver.py",
        "        self.owner = Ownership.APPLICATION\n        if self._queue is not None:\n",
        "        self.owner = Ownership.APPLICATION\n        if False:\n",
    ),
    Mutant(
        "messages are taken in the wrong order",
        "protocol/queue.py",
        "        self.size -= sum(taken.size for taken in batch)\n",
        "        self.size -= sum(taken.size for taken in batch)\n        batch.reverse()\n",
    ),
    Mutant(
        "halves in packed messages leak",
        "protocol/queue.py",
        "                        found.append(unpack_message(contents, limits))\n",
        "                        pass\n",
    ),
    Mutant(
        "a packed run loses its first number",
        "protocol/queue.py",
        "                last = MessageRun(number, [], 0)\n",
        "                last = MessageRun(number + (count > 1), [], 0)\n",
    ),
    Mutant(
        "VERSION is omitted too early",
        "protocol/outgoing.py",
        "        return route if self.version_acked else _VERSION + route\n",
        "        return route if self._next_stream > 9 else _VERSION + route\n",
    ),
    Mutant(
        "the first flight uses the sender's own windows",
        "protocol/flow.py",
        "        self.peer_limits = initial\n",
        "        self.peer_limits = limits\n",
    ),
    Mutant(
        "VERSION is never acked",
        "protocol/connection.py",
        "open_greeting(ack_version=True)",
        "open_greeting(ack_version=False)",
    ),
    Mutant(
        "an idle sender is not told that its receiver has closed",
        "protocol/sender.py",
        "            or self.owner == Ownership.UNCLAIMED\n",
        "            or self.owner == Ownership.UNCLAIMED\n            or not self.next_reliable\n",
    ),
    Mutant(
        "a sender is not told that its channel was lost",
        "protocol/sender.py",
        "        self._emit(SenderEnded(self.channel, how, lineage))\n",
        "        if how is not End.LOST:\n"
        "            self._emit(SenderEnded(self.channel, how, lineage))\n",
    ),
    # Leaks
    Mutant(
        "an ended channel is subtracted twice",
        "protocol/channels.py",
        "        if half.channel not in self.halves:\n            return  # AQ-LIMIT-4",
        "        if False:\n            return  # AQ-LIMIT-4",
    ),
    Mutant(
        "lingering halves are counted forever",
        "protocol/channels.py",
        "            self._context.lingering -= 1\n",
        "            pass\n",
    ),
    Mutant(
        "ended channels of this side are counted forever",
        "protocol/channels.py",
        "            self._ours -= 1\n",
        "            pass\n",
    ),
    Mutant(
        "ended halves stay in the table",
        "protocol/channels.py",
        "        if half.settle():\n            self._remove(half)\n",
        "        if half.settle():\n",
    ),
    Mutant(
        "an ended receiver keeps its timer",
        "protocol/receiver.py",
        "        self._acks = self._reliable = self.datagrams = None\n"
        "        self.wake_at = self._flush_at = self._close_at = NEVER\n",
        "        self._acks = self._reliable = self.datagrams = None\n"
        "        self._context.timers.wake(self, now + 1e6)\n",
    ),
    Mutant(
        "credit of an ended channel is still reported",
        "protocol/receiver.py",
        "        self._credit.discard(self.channel, queued, self.unreported, self.reserved)\n",
        "        self._credit.discard(-1, queued, self.unreported, self.reserved)\n",
    ),
    Mutant(
        "dropped messages count as queued",
        "protocol/receiver.py",
        "        context.queued_objects -= queue.count\n",
        "",
    ),
    # Others
    Mutant(
        "the deadline of datagrams ignores the round-trip time",
        "protocol/receiver.py",
        "max(2 * self._context.rtt, config.receipt_deadline_min)",
        "max(0.0, config.receipt_deadline_min)",
    ),
    Mutant(
        "nacks are not reported to the application",
        "protocol/sender.py",
        "            self._emit(Undelivered(self.channel, False, bad))\n",
        "            pass\n",
    ),
    Mutant(
        "a sender that waits is not woken by the peer's limits",
        "protocol/connection.py",
        "            if isinstance(half, SendingHalf):\n                half.allow()\n",
        "            pass\n",
    ),
    Mutant(
        "a sender ends before its channel is known to be accessible",
        "protocol/sender.py",
        "            or not self.node.accessible\n",
        "",
    ),
    Mutant(
        "a receiver closes without acking datagrams that were not announced yet",
        "protocol/receiver.py",
        "if datagrams is not None and datagrams.overtaken() and not self.all_announced:\n",
        "if False:\n",
    ),
    Mutant(
        "a sender ends finished although messages were nacked",
        "protocol/sender.py",
        "        elif was is SenderState.FINISHED and complete:\n",
        "        elif was is SenderState.FINISHED:\n",
    ),
    Mutant(
        "the connection window is not enforced",
        "protocol/flow.py",
        "self.outstanding + size <= limit or self.outstanding <= self.limit - self.base",
        "True",
    ),
    Mutant(
        "a message larger than the window never fits",
        "protocol/flow.py",
        "self.outstanding + size <= limit or self.outstanding <= self.limit - self.base",
        "self.outstanding + size <= limit",
    ),
    Mutant(
        "nacks return the credit of other datagrams",
        "protocol/unreliable.py",
        "                    size = self.sizes.popleft()\n",
        "                    size = self.sizes.pop()\n",
    ),
    Mutant(
        "the lineage is reported in reverse",
        "protocol/lineage.py",
        "(node.channel, *above)",
        "(*above, node.channel)",
    ),
    Mutant(
        "credit spread over many channels is not reported",
        "protocol/connection.py",
        "            self._report_all()\n",
        "            pass\n",
    ),
    Mutant(
        "datagrams are sent after their sender was cancelled",
        "protocol/sender.py",
        "        out.drop_datagrams(self.channel)\n        if self.datagrams is not None:\n",
        "        if self.datagrams is not None:\n",
    ),
    Mutant(
        "acks are two milliseconds late",
        "protocol/config.py",
        "default=_DELIVERY.ack_delay,",
        "default=_DELIVERY.ack_delay + 0.002,",
    ),
    Mutant(
        "an empty message waits for the connection window",
        "protocol/flow.py",
        "        if spare or (not size and self.reserve):\n",
        "        if spare:\n",
    ),
    # What an application sets
    Mutant(
        "the ack delay that an application sets is ignored",
        "protocol/receiver.py",
        "            self._flush_at = now + self._context.config.ack_delay\n",
        "            self._flush_at = now + 0.010\n",
    ),
    Mutant(
        "the receipt deadline that an application sets is ignored",
        "protocol/receiver.py",
        "config.receipt_deadline_min), config.receipt_deadline_max\n",
        "0.050), 1.0\n",
    ),
    # Priorities
    Mutant(
        "the class of a sender is ignored",
        "protocol/connection.py",
        "set_priority(half.flow, check_priority(priority))",
        "set_priority(half.flow, 4)",
    ),
    Mutant(
        "the least urgent class leaves first",
        "protocol/priorities.py",
        "            for flows in self._classes:\n                if flows:\n",
        "            for flows in self._classes[::-1]:\n                if flows:\n",
    ),
    Mutant(
        "a class has no turn of its own",
        "protocol/priorities.py",
        "        if self._turn % 2:\n",
        "        if False:\n",
    ),
    Mutant(
        "one class has no turn of its own",
        "protocol/priorities.py",
        "        if self._turn % 2:\n",
        "        if self._turn % 2 and self._turn != 13:\n",
    ),
    Mutant(
        "datagrams leave behind messages",
        "protocol/priorities.py",
        "        if not with_datagrams and self.waiting:\n",
        "        if self.waiting:\n",
    ),
    Mutant(
        "a sender keeps its turn until it has nothing to send",
        "protocol/priorities.py",
        "            self._classes[flow.priority].move_to_end(flow)\n",
        "            pass\n",
    ),
    Mutant(
        "a turn takes any number of bytes",
        "protocol/priorities.py",
        "        flow.deficit -= size\n",
        "        flow.deficit -= size // 8\n",
    ),
    Mutant(
        "datagrams that wait are announced",
        "protocol/sender.py",
        "count = unsent - datagrams.announced if unsent >= 0 else datagrams.unannounced()",
        "count = datagrams.unannounced()",
    ),
    Mutant(
        "FINISH_SENDER overtakes the messages of its channel",
        "protocol/outgoing.py",
        "        elif stream.flow is None and flow.streams and flow not in self._unopened_flows:\n",
        "        elif False:\n",
    ),
    Mutant(
        "FINISH_SENDER overtakes the datagrams of its channel",
        "protocol/outgoing.py",
        "        if stream.flow is None and datagrams:\n",
        "        if False:\n",
    ),
    Mutant(
        "frames that carry no message leave behind messages",
        "protocol/outgoing.py",
        "        if self._control or self._unopened:\n"
        '            self._poll_control(room, cast("list[Action | OutgoingStream]", actions))\n'
        "        if not self._control:\n",
        "        if self._scheduler.waiting:\n"
        "            self._poll_scheduled(room, actions)\n"
        "        if self._control or self._unopened:\n"
        '            self._poll_control(room, cast("list[Action | OutgoingStream]", actions))\n'
        "        if not self._control:\n",
    ),
]
