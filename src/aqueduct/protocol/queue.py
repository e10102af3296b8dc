"""Messages that arrived and wait to be taken."""

from __future__ import annotations

from aqueduct.wire.frames import Message, MessageRun


class Empties:
    """Consecutive messages without content, which cost no credit and no memory (AQ-FLOW-9)."""

    __slots__ = ("count", "first")

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count

    def split(self, count: int) -> MessageRun:
        """Take the first ``count`` messages off."""
        run = MessageRun(self.first, [b""] * count, 0)
        self.first += count
        self.count -= count
        return run


class Queue:
    """What one receiver holds for its application, in the order of arrival."""

    __slots__ = ("_entries", "size")

    def __init__(self) -> None:
        self._entries: list[Message | MessageRun | Empties] = []
        self.size = 0
        """Bytes that flow control counts."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, entry: Message | MessageRun) -> None:
        """Append a message, or a run that is not empty."""
        self._entries.append(entry)
        self.size += entry.size

    def add_empties(self, first: int, count: int, max_entries: int) -> bool:
        """Append messages without content; False if that would take too much memory."""
        last = self._entries[-1] if self._entries else None
        if isinstance(last, Empties) and last.first + last.count == first:
            last.count += count
            return True
        self._entries.append(Empties(first, count))
        return len(self._entries) <= max_entries

    def take(self, limit: int) -> list[Message | MessageRun]:
        """Take out up to ``limit`` messages."""
        batch: list[Message | MessageRun] = []
        used = 0
        for entry in self._entries:
            if limit <= 0:
                break
            if isinstance(entry, Message):
                batch.append(entry)
                limit -= 1
            elif isinstance(entry, Empties):
                run = entry.split(min(entry.count, limit))
                batch.append(run)
                limit -= len(run.payloads)
                if entry.count:
                    break
            elif len(entry.payloads) > limit:
                batch.append(split_run(entry, limit))
                break
            else:
                batch.append(entry)
                limit -= len(entry.payloads)
            used += 1
        del self._entries[:used]
        for taken in batch:
            self.size -= taken.size
        return batch

    def messages_with_channels(self) -> list[Message]:
        """The messages that somebody has to answer for when the queue is dropped."""
        return [e for e in self._entries if isinstance(e, Message) and e.attachments]


def split_run(run: MessageRun, count: int) -> MessageRun:
    """Take the first ``count`` messages off a run."""
    payloads = run.payloads[:count]
    del run.payloads[:count]
    taken = MessageRun(run.first, payloads, sum(map(len, payloads)))
    run.first += count
    run.size -= taken.size
    return taken
