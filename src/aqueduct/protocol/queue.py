"""The receive queue of a channel. Flow-control credit bounds its memory.

A message of one byte costs one byte of credit, and many times that as an object. So once the queues
hold many messages, small ones and those with headers are packed as bytes, and unpacked when taken.
Messages without content cost no credit: they are kept as a count (AQ-FLOW-9).
"""

from __future__ import annotations

from aqueduct.wire.frames import MessageFrame, MessageRun, RouteTo
from aqueduct.wire.primitives import decode_varint, encode_varint
from aqueduct.wire.sequence import ParserLimits, SequenceParser

SMALL = 64
"""Average bytes per message below which a run is packed, once many messages are queued."""

MERGED = 1_024
"""Most messages in a merged run: taking a few of them costs time linear in its length."""

_PLAIN = 0
_EMPTY = 1
_RICH = 2

_ROUTE = RouteTo(0).encode()
_TAKEN = MessageRun(0, [], 0)


class Stretch:
    """Empty messages with consecutive numbers."""

    __slots__ = ("count", "first")

    def __init__(self, first: int = 0, count: int = 0) -> None:
        self.first = first
        self.count = count

    def take(self, limit: int) -> tuple[int, int]:
        """Remove up to ``limit`` messages; return the first number and the count."""
        first, count = self.first, min(self.count, limit)
        self.first += count
        self.count -= count
        return first, count


class Packed:
    """Messages as bytes, each as a kind, a number, and a length with contents or a count."""

    __slots__ = ("_data", "_front", "_position", "_tail", "stretches")

    def __init__(self) -> None:
        self._front = Stretch()
        self._data = bytearray()
        self._position = 0
        self._tail = Stretch()
        self.stretches = 0
        """How many stretches of empty messages there are."""

    def __bool__(self) -> bool:
        return self._front.count + self._tail.count > 0 or self._position < len(self._data)

    def add(self, kind: int, number: int, contents: bytes) -> None:
        """Append one message."""
        self._write_tail()
        self._data.append(kind)
        self._data += encode_varint(number)
        self._data += encode_varint(len(contents))
        self._data += contents

    def add_empty(self, number: int) -> None:
        """Append a message without content."""
        tail = self._tail
        if tail.first + tail.count != number or not tail.count:
            self._write_tail()
            self._tail = tail = Stretch(number)
            self.stretches += 1
        tail.count += 1

    def read(self, limit: int) -> tuple[int, int, bytes, int]:
        """Remove the next entry; return its kind, number, contents and count, up to a limit."""
        if not self._front.count:
            start = self._position
            window = bytes(self._data[start : start + 21])  # a kind and two varints at most
            if not window:
                self._front, self._tail = self._tail, Stretch()
                return self._read_front(limit)
            number, used = decode_varint(window, 1, len(window))
            value, used = decode_varint(window, used, len(window))
            if window[0] != _EMPTY:
                contents = bytes(self._data[start + used : start + used + value])
                self._advance(used + value)
                return window[0], number, contents, 1
            self._front = Stretch(number, value)
            self._advance(used)
        return self._read_front(limit)

    def _read_front(self, limit: int) -> tuple[int, int, bytes, int]:
        first, count = self._front.take(limit)
        self.stretches -= not self._front.count
        return _EMPTY, first, b"", count

    def _write_tail(self) -> None:
        if self._tail.count:
            self._data.append(_EMPTY)
            self._data += encode_varint(self._tail.first)
            self._data += encode_varint(self._tail.count)
            self._tail = Stretch()

    def _advance(self, used: int) -> None:
        self._position += used
        if 2 * self._position > len(self._data):
            del self._data[: self._position]
            self._position = 0


class Queue:
    """The messages that one receiver holds for its application, in the order of arrival."""

    __slots__ = ("_entries", "_head", "_stretches", "count", "size")

    def __init__(self) -> None:
        self._entries: list[MessageFrame | MessageRun | Packed] = []
        self._head = 0
        self._stretches = 0
        self.size = 0
        """Bytes that flow control counts."""
        self.count = 0
        """Messages, header pairs and attachments kept as objects."""

    def __bool__(self) -> bool:
        return self._head < len(self._entries)

    def add_message(self, message: MessageFrame, size: int, *, pack: bool) -> None:
        """Append a message with headers or channels."""
        self.size += size
        if pack:
            self._pack().add(_RICH, message.number, message.encode())
        else:
            self._entries.append(message)
            self.count += objects_in(message)

    def add_run(self, run: MessageRun, *, pack: bool, max_stretches: int) -> bool:
        """Append messages without headers; return False for too many stretches of empty ones."""
        count = len(run.payloads)
        self.size += run.size
        if count > 2 * run.size or (pack and run.size < SMALL * count):
            self._pack_run(run)
            return self._stretches <= self.size + max_stretches
        self.count += count
        last = self._entries[-1] if self else None
        if (
            isinstance(last, MessageRun)
            and last.first + len(last.payloads) == run.first
            and len(last.payloads) < MERGED
        ):
            last.payloads += run.payloads
            last.size += run.size
        else:
            self._entries.append(run)
        return True

    def take(self, limit: int, limits: ParserLimits) -> list[MessageFrame | MessageRun]:
        """Remove and return up to ``limit`` messages."""
        batch: list[MessageFrame | MessageRun] = []
        while limit > 0 and self:
            entry = self._entries[self._head]
            if isinstance(entry, Packed):
                limit -= self._unpack(entry, limit, limits, batch)
                if entry:
                    break
            elif isinstance(entry, MessageFrame):
                batch.append(entry)
                self.count -= objects_in(entry)
                limit -= 1
            elif len(entry.payloads) > limit:
                batch.append(split_run(entry, limit))
                self.count -= limit
                break
            else:
                batch.append(entry)
                self.count -= len(entry.payloads)
                limit -= len(entry.payloads)
            self._entries[self._head] = _TAKEN  # so that it is not referenced any longer
            self._head += 1
        self.size -= sum(taken.size for taken in batch)
        if 2 * self._head > len(self._entries):
            del self._entries[: self._head]
            self._head = 0
        return batch

    def drop(self, limits: ParserLimits) -> list[MessageFrame]:
        """Empty the queue; return the messages that carry channels."""
        found: list[MessageFrame] = []
        for entry in self._entries[self._head :]:
            if isinstance(entry, MessageFrame):
                found.append(entry)
            elif isinstance(entry, Packed):
                while entry:
                    kind, _, contents, _ = entry.read(1 << 62)
                    if kind == _RICH:
                        found.append(unpack_message(contents, limits))
        self._entries.clear()
        self.size = self.count = self._head = 0
        return [message for message in found if message.attachments]

    def _pack(self) -> Packed:
        last = self._entries[-1] if self else None
        if not isinstance(last, Packed):
            last = Packed()
            self._entries.append(last)
        return last

    def _pack_run(self, run: MessageRun) -> None:
        packed = self._pack()
        before = packed.stretches
        for number, payload in enumerate(run.payloads, run.first):
            if payload:
                packed.add(_PLAIN, number, payload)
            else:
                packed.add_empty(number)
        self._stretches += packed.stretches - before

    def _unpack(
        self,
        packed: Packed,
        limit: int,
        limits: ParserLimits,
        batch: list[MessageFrame | MessageRun],
    ) -> int:
        """Move up to ``limit`` messages of a packed entry to the batch; return how many."""
        taken = 0
        before = packed.stretches
        while packed and taken < limit:
            kind, number, contents, count = packed.read(limit - taken)
            taken += count
            if kind == _RICH:
                batch.append(unpack_message(contents, limits))
                continue
            last = batch[-1] if batch else None
            if not isinstance(last, MessageRun) or last.first + len(last.payloads) != number:
                last = MessageRun(number, [], 0)
                batch.append(last)
            last.payloads += [contents] * count
            last.size += len(contents)
        self._stretches += packed.stretches - before
        return taken


def objects_in(message: MessageFrame) -> int:
    """Return about how many objects a message consists of: a header pair can be two bytes."""
    pairs = len(message.headers) + sum(len(each.headers) for each in message.attachments)
    return 1 + pairs + len(message.attachments)


def unpack_message(frame: bytes, limits: ParserLimits) -> MessageFrame:
    """Decode a packed message."""
    parser = SequenceParser(limits)
    parser.feed(_ROUTE + frame)
    parser.next()
    message = parser.next()
    assert isinstance(message, MessageFrame)
    return message


def split_run(run: MessageRun, count: int) -> MessageRun:
    """Remove the first ``count`` messages of a run, and return them."""
    payloads = run.payloads[:count]
    del run.payloads[:count]
    taken = MessageRun(run.first, payloads, sum(map(len, payloads)))
    run.first += count
    run.size -= taken.size
    return taken
