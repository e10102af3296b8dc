"""A report of the state that a connection still holds, to find leaks and wrong counts."""

from __future__ import annotations

from aqueduct.protocol.channels import Channels
from aqueduct.protocol.half import Context
from aqueduct.protocol.receiver import ReceivingHalf
from aqueduct.protocol.sender import SendingHalf
from aqueduct.wire.chanid import describe


def leftovers(
    context: Context, channels: Channels, streams: list[int], held_bytes: int
) -> list[str]:
    """Describe everything that is still held; the list is empty once all channels have ended."""
    halves = channels.halves.values()
    left = [
        f"{describe(half.channel)}: {'sender' if isinstance(half, SendingHalf) else 'receiver'} "
        f"{half.state.value}"
        for half in halves
    ]
    left += [
        f"{describe(half.channel)}: {half.node.size()} carriers of unknown fate"
        for half in halves
        if half.node is not None and half.node.size()
    ]
    left += [f"incoming stream {number}" for number in streams]
    left += [f"blocked sender {describe(channel)}" for channel in context.blocked.sizes]
    credit = context.credit
    outstanding = credit.send_window.outstanding - credit.written_off.total
    if outstanding:
        left.append(f"{outstanding} bytes outstanding")
    if held_bytes:
        left.append(f"{held_bytes} bytes held")
    return (
        left + channels.leftovers() + _stray_state(context, channels) + _counts(context, channels)
    )


def _stray_state(context: Context, channels: Channels) -> list[str]:
    """Describe state that is kept for channels that are no longer in the table."""
    halves = channels.halves
    sleepers = [s for s in context.timers.sleepers() if isinstance(s, SendingHalf | ReceivingHalf)]
    kept: dict[str, list[int]] = {
        "unsent acks": list(context.acks_due),
        "unsent credit": list(context.credit.unreported_channels),
        "a timer": [half.channel for half in sleepers if halves.get(half.channel) is not half],
    }
    return [
        f"{what} of {describe(channel)}, which ended"
        for what, named in kept.items()
        for channel in named
        if what == "a timer" or channel not in halves
    ]


def _counts(context: Context, channels: Channels) -> list[str]:
    """Describe sums that differ from the counts of the halves."""
    halves = channels.halves.values()
    receivers = [half for half in halves if isinstance(half, ReceivingHalf)]
    credit = context.credit
    window = credit.send_window
    reserved = credit.written_off.reserved + sum(
        window.spare(0, half.outstanding) for half in halves if isinstance(half, SendingHalf)
    )
    left: list[str] = []
    if window.reserved != reserved:
        left.append(f"a count of {window.reserved} bytes in reserves of senders")
    if credit.receive_window.reserved != sum(half.reserved for half in receivers):
        left.append(f"a count of {credit.receive_window.reserved} bytes in reserves")
    if credit.unreported != sum(half.unreported for half in receivers):
        left.append(f"{credit.unreported} bytes of credit that no channel reports")
    if context.queued_objects != sum(half.queued_objects for half in receivers):
        left.append(f"a count of {context.queued_objects} messages in queues")
    return left
