"""The table of channels: how halves are created, end, and are abandoned, forgotten or lost."""

from __future__ import annotations

from collections import OrderedDict, deque

from aqueduct.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from aqueduct.protocol.config import ROUTE_DELAY, Config
from aqueduct.protocol.events import End, ReceiverEnded, SenderEnded
from aqueduct.protocol.forgetting import Forgetting, expire
from aqueduct.protocol.half import Context, Ownership
from aqueduct.protocol.lineage import Node, spread_lost
from aqueduct.protocol.modes import Mode
from aqueduct.protocol.receiver import ReceivingHalf
from aqueduct.protocol.sender import SendingHalf
from aqueduct.wire.chanid import (
    ENTRYPOINT,
    Side,
    channel_id,
    creator_of,
    describe,
    first_index,
    index_of,
    sender_of,
    space_of,
)
from aqueduct.wire.frames import MessageFrame
from aqueduct.wire.ranges import RangeSet

AnyHalf = SendingHalf | ReceivingHalf


class Channels:
    """All halves of one side of a connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.side = context.side
        self.halves: dict[int, AnyHalf] = {}
        self._tombstones = Tombstones(context.config)
        self._attached = Tombstones(context.config)
        """Channels of the peer's creation whose carrier has arrived."""
        self._forgetting = Forgetting(context.config, context.out, context.timers)
        self._next_index: dict[int, int] = {}
        self._ours = 0
        self._of_peer = 0
        config = context.config
        self._max_of_peer = 2 * max(config.limits.max_channels, config.initial_limits.max_channels)
        # AQ-CHAN-1: the entrypoint exists from the start.
        if context.side == Side.CLIENT:
            node = Node(ENTRYPOINT, True)
            self.halves[ENTRYPOINT] = SendingHalf(
                context, ENTRYPOINT, node, Ownership.APPLICATION, Mode.ORDERED
            )
        else:
            self.halves[ENTRYPOINT] = ReceivingHalf(
                context, ENTRYPOINT, None, Ownership.APPLICATION
            )

    # -- creation --------------------------------------------------------------------------------

    def check_room(self, count: int) -> None:
        """Raise if the peer does not allow ``count`` more channels (AQ-LIMIT-4)."""
        allowed = self._context.credit.peer_limits.max_channels
        if self._ours + count > allowed:
            raise LocalProtocolError(
                f"AQ-LIMIT-4: the peer accepts {allowed} channels at once, {self._ours} are open; "
                "end some before attaching more"
            )

    def next_id(self, sender: int, oneshot: bool, ahead: dict[int, int]) -> int:
        """Return the id of the next channel of a space, after those counted in ``ahead``."""
        side = self.side
        space = channel_id(side, sender, oneshot, 0)
        index = self._next_index.get(space, first_index(space)) + ahead.get(space, 0)
        ahead[space] = ahead.get(space, 0) + 1
        return channel_id(side, sender, oneshot, index)

    def create(self, channel: int, mode: Mode) -> Node:
        """Create our half of a channel whose other half is sent in a message (AQ-CHAN-2)."""
        space = space_of(channel)
        self._next_index[space] = self._next_index.get(space, first_index(space)) + 1
        self._ours += 1
        node = Node(channel, False)
        if sender_of(channel) == self.side:
            self.halves[channel] = SendingHalf(
                self._context, channel, node, Ownership.APPLICATION, mode
            )
        else:
            self.halves[channel] = ReceivingHalf(
                self._context, channel, node, Ownership.APPLICATION
            )
        return node

    def create_for_peer(self, channel: int) -> AnyHalf:
        """Create our half of a channel of the peer's creation, not claimed yet."""
        self._of_peer += 1
        if self._of_peer > self._max_of_peer:
            raise RemoteProtocolError(
                "AQ-LIMIT-4",
                f"more than {self._max_of_peer} channels, twice what was allowed",
                CloseCode.LIMIT_EXCEEDED,
            )
        half: AnyHalf
        if sender_of(channel) == self.side:
            # AQ-LIN-1: a sender that was received is accessible.
            node = Node(channel, True)
            half = SendingHalf(self._context, channel, node, Ownership.UNCLAIMED, Mode.ORDERED)
        else:
            half = ReceivingHalf(self._context, channel, None, Ownership.UNCLAIMED)
        self.halves[channel] = half
        return half

    # -- routing ---------------------------------------------------------------------------------

    def route(self, channel: int, now: float) -> AnyHalf | None:
        """Return the half of a ROUTE_TO; None if the rest of the sequence is ignored."""
        half = self.halves.get(channel)
        if half is not None:
            if half.node is not None and creator_of(channel) == self.side:
                half.node.known = True
                if half.is_over() and channel != ENTRYPOINT:
                    self._forgetting.answer(channel, now, ended=True)
            return half
        ended = channel in self._tombstones
        if creator_of(channel) == self.side and channel != ENTRYPOINT:
            self._forgetting.answer(channel, now, ended=ended)
            return None
        if ended or channel == ENTRYPOINT:
            return None  # AQ-ROUTE-4
        half = self.create_for_peer(channel)  # AQ-ROUTE-1
        half.route_back(now + min(self._context.config.ack_delay, ROUTE_DELAY))
        return half

    def attach(self, message: MessageFrame, now: float) -> None:
        """Record the channels that an arrived message carries (AQ-CHAN-3)."""
        for attachment in message.attachments:
            channel = attachment.channel
            if creator_of(channel) == self.side:
                raise RemoteProtocolError(
                    "AQ-FRAME-21", f"{describe(channel)} is not the peer's to attach"
                )
            if channel in self._attached or channel == ENTRYPOINT:
                raise RemoteProtocolError("AQ-SEND-7", f"{describe(channel)} was attached twice")
            self._attached.add(channel, now)
            half = self.halves.get(channel)
            if half is None:
                if channel in self._tombstones:
                    continue
                half = self.create_for_peer(channel)
            half.attached = True
            self._linger(half, now)

    def claim(self, message: MessageFrame, now: float) -> None:
        """Give the handles in a message to the application, which has taken it."""
        for attachment in message.attachments:
            channel = attachment.channel
            half = self.halves.get(channel)
            if half is not None:
                half.claim(attachment.headers)
                self.update(half, now)
            elif sender_of(channel) == self.side:
                # AQ-FORGET-5: what the application takes cannot be lost, so its receiver has ended.
                self._context.events.append(SenderEnded(channel, End.RECEIVER_CLOSED))
            else:
                self._context.events.append(ReceiverEnded(channel, End.LOST))

    # -- ends ------------------------------------------------------------------------------------

    def update(self, half: AnyHalf, now: float) -> None:
        """End a half on the wire and remove it from the table, if its state allows that now."""
        if half.is_open():
            return
        if half.channel not in self.halves:
            return  # AQ-LIMIT-4: it no longer counts, whatever else arrives on its streams
        if isinstance(half, ReceivingHalf):
            half.complete(now)
        if half.settle():
            self._remove(half)
            self._tombstones.add(half.channel, now)
        else:
            self._linger(half, now)

    def abandon(self, dropped: list[MessageFrame], now: float) -> None:
        """End the halves in messages that were dropped untaken (AQ-CLOSE-4)."""
        waiting = deque(dropped)
        while waiting:
            for attachment in waiting.popleft().attachments:
                half = self.halves.get(attachment.channel)
                if half is None:
                    continue
                if isinstance(half, ReceivingHalf):
                    waiting.extend(half.close())
                else:
                    half.owner = Ownership.RELEASED
                    half.cancel(now)
                self.update(half, now)

    def settle_lineage(self, accessible: list[Node], now: float) -> None:
        """Let the senders of channels that became accessible report deliveries and end."""
        for node in accessible:
            half = self.halves.get(node.channel)
            if isinstance(half, SendingHalf):
                half.make_accessible()
                self.update(half, now)

    def lose(self, nodes: list[Node], carrier: int, now: float) -> None:
        """Drop channels whose carriers are lost, and all their descendants (AQ-LIN-3)."""
        if not nodes:
            return
        for node, lineage in spread_lost(nodes, (carrier,)):
            half = self.halves.get(node.channel)
            if isinstance(half, ReceivingHalf):
                self._remove(half)
                self.abandon(half.drop(End.LOST, lineage), now)
            elif half is not None:
                self._remove(half)
                half.drop(End.LOST, lineage, now)
            if node.known:
                self._forgetting.send(node.channel, now)  # AQ-LIN-4

    def handle_forget(self, half: AnyHalf, now: float) -> None:
        """Process FORGET_CHANNEL from the channel's creator (AQ-FORGET-1)."""
        if half.is_over() and half.owner is not Ownership.UNCLAIMED:
            return  # AQ-FORGET-3: it ended in order, and its queue belongs to the application
        if isinstance(half, SendingHalf) and half.owner is Ownership.APPLICATION:
            half.handle_forget(now)  # AQ-FORGET-5
            return
        self._drop_forgotten(half, now)

    def handle_timer(self, half: AnyHalf, now: float) -> None:
        """Run the timer of a half."""
        half.handle_timer(now)
        if isinstance(half, SendingHalf) and half.is_overdue(now):
            self._drop_forgotten(half, now)
        else:
            self.update(half, now)

    def _drop_forgotten(self, half: AnyHalf, now: float) -> None:
        self._remove(half)
        self._tombstones.add(half.channel, now)
        if isinstance(half, ReceivingHalf):
            self.abandon(half.drop(End.LOST, ()), now)
        else:
            self.lose(half.drop(End.LOST, (), now), half.channel, now)

    def end_all(self, now: float) -> None:
        """End every half at the end of the connection (AQ-CONN-7)."""
        halves = list(self.halves.values())
        self.halves.clear()
        self._forgetting.clear()
        self._ours = self._of_peer = 0
        for half in halves:
            if isinstance(half, SendingHalf):
                half.drop(End.CONNECTION, (), now)
            else:
                half.drop(End.CONNECTION, ())

    def leftovers(self) -> list[str]:
        """Describe counts that disagree with the table, and entries that are left behind."""
        made = [half for half in self.halves.values() if half.channel != ENTRYPOINT]
        ours = [half for half in made if creator_of(half.channel) == self.side]
        lingering = [half for half in made if half.lingers]
        counts = (
            ("channels of this side's creation", self._ours, len(ours)),
            ("halves that linger", self._context.lingering, len(lingering)),
            (
                "channels of the peer's creation",
                self._of_peer,
                len(made) - len(ours) - len(lingering),
            ),
        )
        return [
            f"a count of {count} {what}, of which there are {there}"
            for what, count, there in counts
            if count != there
        ]

    def _linger(self, half: AnyHalf, now: float) -> None:
        """Stop counting a half against the peer, which ended it before it was taken (AQ-LIMIT-4).

        A receiver keeps its queue; a sender keeps nothing.
        """
        if half.lingers or not half.attached or not half.is_over() or half.channel == ENTRYPOINT:
            return
        if creator_of(half.channel) == self.side:
            return
        if isinstance(half, SendingHalf) and half.end is not None:
            self._remove(half)
            self._tombstones.add(half.channel, now)
            return
        half.lingers = True
        self._of_peer -= 1
        self._context.lingering += 1

    def _remove(self, half: AnyHalf) -> None:
        channel = half.channel
        del self.halves[channel]
        if channel == ENTRYPOINT:
            return
        if half.lingers:
            self._context.lingering -= 1
        elif creator_of(channel) == self.side:
            self._ours -= 1
        else:
            self._of_peer -= 1


class Tombstones:
    """Ended channels as ranges per index space; past a cap, the recent ones (AQ-FORGET-4)."""

    __slots__ = ("_cap", "_interval", "_ranges", "_recent")

    def __init__(self, config: Config) -> None:
        self._cap = config.max_remembered
        self._interval = config.forget_interval
        self._ranges: dict[int, RangeSet] = {}
        self._recent: OrderedDict[int, float] = OrderedDict()

    def __contains__(self, channel: int) -> bool:
        ended = self._ranges.get(space_of(channel))
        return (ended is not None and index_of(channel) in ended) or channel in self._recent

    def add(self, channel: int, now: float) -> None:
        """Add a channel that ended."""
        ended = self._ranges.setdefault(space_of(channel), RangeSet())
        index = index_of(channel)
        adjacent = index - 1 in ended or index + 1 in ended
        if adjacent or ended.range_count < self._cap:
            ended.add(index, index + 1)
            return
        expire(self._recent, now - self._interval)
        if self._recent and len(self._recent) >= self._cap:
            self._recent.popitem(last=False)
        self._recent[channel] = now
