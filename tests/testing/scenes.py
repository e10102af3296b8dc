"""Short valid runs, which the tests of the checkers then modify."""

from __future__ import annotations

from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.testing.faults import Faults
from aqueduct.testing.pair import Pair
from aqueduct.testing.record import Record
from aqueduct.wire.chanid import ENTRYPOINT

TO_PEER = Attach(Give.RECEIVER)
FROM_PEER = Attach(Give.SENDER)


def _end(pair: Pair) -> Record:
    pair.record.drained = pair.run_until_idle()
    pair.record.leftovers = (pair.client.core.leftovers(), pair.server.core.leftovers())
    return pair.record


def three_messages() -> Record:
    """An ordered channel with three messages, taken and finished."""
    pair = Pair(delay=0.01)
    pair.run(0.1)
    for payload in (b"zero", b"one", b"two"):
        pair.client.send(ENTRYPOINT, payload)
        pair.run(0.05)
        pair.server.take(ENTRYPOINT)
    pair.run(0.1)
    pair.client.finish(ENTRYPOINT)
    return _end(pair)


def a_burst() -> Record:
    """An ordered channel with seventy messages in one turn."""
    pair = Pair(delay=0.01)
    pair.run(0.1)
    for number in range(70):
        pair.client.send(ENTRYPOINT, bytes([number]))
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    pair.client.finish(ENTRYPOINT)
    return _end(pair)


def datagrams() -> Record:
    """An unreliable channel whose second message is lost."""
    pair = Pair(delay=0.01)
    pair.run(0.1)
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    pair.client.send(ENTRYPOINT, b"zero")
    pair.flush()
    pair.network.faults = Faults(delay=0.01, loss=1.0, recovery=0.0)
    pair.client.send(ENTRYPOINT, b"one")
    pair.network.flush(pair.client.side)
    pair.network.faults = Faults(delay=0.01)
    pair.client.send(ENTRYPOINT, b"two")
    pair.run(0.5)
    pair.server.take(ENTRYPOINT)
    pair.client.finish(ENTRYPOINT)
    return _end(pair)


def a_datagram_beside_a_stream() -> Record:
    """A datagram of one channel, and a message of another in a stream."""
    pair = Pair(delay=0.01)
    pair.run(0.1)
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    (child,) = pair.client.send_message(ENTRYPOINT, b"", attach=[TO_PEER]).channels
    pair.client.send(child, b"stream")
    pair.client.finish(child)
    pair.run(0.1)
    pair.client.send(ENTRYPOINT, b"datagram")
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    pair.server.take(child)
    pair.client.finish(ENTRYPOINT)
    return _end(pair)


def a_loss_that_spreads() -> Record:
    """A channel whose carrier arrives too late, and a channel below it."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    pair.server.close(ENTRYPOINT)
    (child,) = pair.client.send_message(ENTRYPOINT, b"", attach=[TO_PEER]).channels
    (grandchild,) = pair.client.send_message(child, b"", attach=[TO_PEER]).channels
    pair.client.send(grandchild, b"never")
    return _end(pair)


def a_client_that_leaves() -> Record:
    """Two messages, the second one on its way when the client leaves."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    pair.client.send(ENTRYPOINT, b"zero")
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    pair.client.send(ENTRYPOINT, b"one")
    pair.client.leave()
    pair.run(0.03)  # the close arrives one delay after CLOSE_RECEIVER
    pair.server.take(ENTRYPOINT)
    return _end(pair)


def a_stop() -> Record:
    """A receiver that is stopped with one message in its queue and one on its way."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    pair.client.send(ENTRYPOINT, b"in time")
    pair.run(0.1)
    pair.client.send(ENTRYPOINT, b"late")
    pair.flush()
    pair.server.stop(ENTRYPOINT)
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    return _end(pair)


def a_cancel() -> Record:
    """A channel that is cancelled with messages in flight."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    (child,) = pair.client.send_message(ENTRYPOINT, b"", attach=[TO_PEER]).channels
    pair.client.send(child, b"zero")
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    pair.client.send(child, b"one")
    pair.client.cancel(child)
    pair.run(0.1)
    pair.client.finish(ENTRYPOINT)
    return _end(pair)


def a_cancel_of_an_unordered_sender() -> Record:
    """Unordered messages, each on a finished stream, that are cancelled before their ack."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    pair.client.set_mode(ENTRYPOINT, Mode.UNORDERED)
    pair.client.send(ENTRYPOINT, b"zero")
    pair.flush()
    pair.client.cancel(ENTRYPOINT)
    return _end(pair)


def a_queue_dropped_by_a_cancel() -> Record:
    """A taken message that carries a receiver, on a channel that is then cancelled."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    (child,) = pair.client.send_message(ENTRYPOINT, b"", attach=[TO_PEER]).channels
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    pair.client.cancel(ENTRYPOINT)
    pair.run(0.1)
    pair.client.finish(child)
    return _end(pair)


def a_queue_dropped_unread() -> Record:
    """A receiver closed with a message queued that carries both halves."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    pair.client.send_message(ENTRYPOINT, b"", attach=[TO_PEER, FROM_PEER])
    pair.run(0.1)
    pair.server.close(ENTRYPOINT)
    return _end(pair)


def a_late_datagram() -> Record:
    """A datagram arrives after its receiver, at the creator of the channel, was closed."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    (child,) = pair.client.send_message(ENTRYPOINT, b"", attach=[FROM_PEER]).channels
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    pair.server.set_mode(child, Mode.UNRELIABLE)
    pair.server.send(child, b"zero")
    pair.run(0.1)
    pair.client.close(child)
    pair.server.send(child, b"late")
    pair.run(2.0)
    pair.client.finish(ENTRYPOINT)
    return _end(pair)


def a_channel_before_its_carrier() -> Record:
    """A message on a new channel overtakes the one that carries the channel."""
    pair = Pair(delay=0.02)
    pair.run(0.2)
    # The first stream waits for the blackout's end, the second leaves after it.
    pair.network.faults = Faults(delay=0.3)
    (child,) = pair.client.send_message(ENTRYPOINT, b"", attach=[TO_PEER]).channels
    pair.flush()
    pair.network.faults = Faults(delay=0.02)
    pair.client.send(child, b"first")
    pair.client.finish(child)
    pair.run(1.0)
    pair.server.take(ENTRYPOINT)
    pair.run(0.1)
    pair.server.take(child)
    pair.client.finish(ENTRYPOINT)
    return _end(pair)
