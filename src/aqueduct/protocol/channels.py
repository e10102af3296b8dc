"""The table of channels: how halves come to be, end, are abandoned, forgotten and lost."""

from __future__ import annotations

from collections import OrderedDict, deque

from aqueduct.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from aqueduct.protocol.events import End, ReceiverEnded, SenderEnded
from aqueduct.protocol.lineage import Node, spread_lost
from aqueduct.protocol.link import Link, Owner
from aqueduct.protocol.receiver import Receiver
from aqueduct.protocol.sender import Mode, Sender
from aqueduct.protocol.tombstones import Graveyard, expire
from aqueduct.wire.chanid import (
    ENTRYPOINT,
    Side,
    channel_id,
    creator_of,
    describe,
    first_index,
    sender_of,
    space_of,
)
from aqueduct.wire.frames import ForgetChannel, Message

Half = Sender | Receiver


class Channels:
    """All halves of one side of a connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.halves: dict[int, Half] = {}
        self._graveyard = Graveyard(link.config)
        self._attached = Graveyard(link.config)
        """Channels of the peer's creation whose carrier has arrived."""
        self._forgets: OrderedDict[int, float] = OrderedDict()
        self._next_index: dict[int, int] = {}
        self._ours = 0
        self._of_peer = 0
        self._provoked: OrderedDict[int, float] = OrderedDict()
        self._lost_senders: OrderedDict[int, None] = OrderedDict()
        """Senders that the peer forgot before their carrier was taken. Any other sender that is
        gone when its carrier is taken was closed by its receiver, and needs no entry."""
        config = link.config
        self._max_of_peer = 2 * max(config.limits.max_channels, config.initial_limits.max_channels)
        # AQ-CHAN-1: the entrypoint needs nobody to create it.
        if link.side == Side.CLIENT:
            node = Node(ENTRYPOINT, True)
            self.halves[ENTRYPOINT] = Sender(
                link, ENTRYPOINT, node, Owner.APPLICATION, Mode.ORDERED
            )
        else:
            self.halves[ENTRYPOINT] = Receiver(link, ENTRYPOINT, None, Owner.APPLICATION)

    # -- birth -----------------------------------------------------------------------------------

    def check_room(self, count: int) -> None:
        """Refuse to create more channels than the peer takes (AQ-LIMIT-4)."""
        allowed = self._link.peer_limits.max_channels
        if self._ours + count > allowed:
            raise LocalProtocolError(
                f"AQ-LIMIT-4: the peer takes {allowed} channels at once, {self._ours} are open; "
                "end some before sending more away"
            )

    def next_id(self, sender: int, oneshot: bool, ahead: dict[int, int]) -> int:
        """The id the next channel of a space will have, after those counted in ``ahead``."""
        side = self._link.side
        space = channel_id(side, sender, oneshot, 0)
        index = self._next_index.get(space, first_index(space)) + ahead.get(space, 0)
        ahead[space] = ahead.get(space, 0) + 1
        return channel_id(side, sender, oneshot, index)

    def create(self, channel: int, mode: Mode) -> Node:
        """Our half of a channel whose other half goes away in a message (AQ-CHAN-2)."""
        space = space_of(channel)
        self._next_index[space] = self._next_index.get(space, first_index(space)) + 1
        self._ours += 1
        node = Node(channel, False)
        if sender_of(channel) == self._link.side:
            self.halves[channel] = Sender(self._link, channel, node, Owner.APPLICATION, mode)
        else:
            self.halves[channel] = Receiver(self._link, channel, node, Owner.APPLICATION)
        return node

    def create_for_peer(self, channel: int) -> Half:
        """Our half of a channel of the peer's creation, which nobody holds yet."""
        self._of_peer += 1
        if self._of_peer > self._max_of_peer:
            raise RemoteProtocolError(
                "AQ-LIMIT-4",
                f"more than {self._max_of_peer} channels, twice what was allowed",
                CloseCode.LIMIT_EXCEEDED,
            )
        half: Half
        if sender_of(channel) == self._link.side:
            # AQ-LIN-1: whoever can send on it was given it, so it is accessible.
            node = Node(channel, True)
            half = Sender(self._link, channel, node, Owner.NOBODY, Mode.ORDERED)
        else:
            half = Receiver(self._link, channel, None, Owner.NOBODY)
        self.halves[channel] = half
        return half

    # -- routing ---------------------------------------------------------------------------------

    def route(self, channel: int, now: float) -> Half | None:
        """The half that a ROUTE_TO leads to; None if what follows is to be ignored."""
        half = self.halves.get(channel)
        if half is not None:
            if half.node is not None and creator_of(channel) == self._link.side:
                half.node.known = True
            return half
        if channel in self._graveyard or channel == ENTRYPOINT:
            return None  # AQ-ROUTE-4
        if creator_of(channel) == self._link.side:
            self._answer_stray(channel, now)
            return None
        half = self.create_for_peer(channel)  # AQ-ROUTE-1
        half.route_back(now + self._link.config.ack_delay)
        return half

    def attach(self, message: Message, now: float) -> None:
        """A message arrived: the channels in it are promised to this side (AQ-CHAN-3)."""
        for attachment in message.attachments:
            channel = attachment.channel
            if creator_of(channel) == self._link.side:
                raise RemoteProtocolError(
                    "AQ-FRAME-21", f"{describe(channel)} is not the peer's to attach"
                )
            if channel in self._attached or channel == ENTRYPOINT:
                raise RemoteProtocolError("AQ-SEND-7", f"{describe(channel)} was attached twice")
            self._attached.add(channel, now)
            half = self.halves.get(channel)
            if half is None:
                if channel in self._graveyard:
                    self._remember_lost(channel)
                    continue
                half = self.create_for_peer(channel)
            half.attached = True
            self._linger(half, now)

    def claim(self, message: Message, now: float) -> None:
        """The application took a message and the handles in it."""
        for attachment in message.attachments:
            channel = attachment.channel
            half = self.halves.get(channel)
            if half is not None:
                half.claim()
                self.update(half, now)
            elif sender_of(channel) == self._link.side:
                how = End.LOST if self._was_lost(channel) else End.RECEIVER_CLOSED
                self._link.events.append(SenderEnded(channel, how))
            else:
                self._link.events.append(ReceiverEnded(channel, End.LOST))

    # -- death -----------------------------------------------------------------------------------

    def update(self, half: Half, now: float) -> None:
        """Something changed: end the half on the wire and in the table if it is time to."""
        if half.is_open():
            return
        if half.channel not in self.halves:
            return  # AQ-LIMIT-4: it no longer counts, whatever else arrives on its streams
        if isinstance(half, Receiver):
            half.complete(now)
        if half.settle():
            self._remove(half)
            self._graveyard.add(half.channel, now)
        else:
            self._linger(half, now)

    def abandon(self, dropped: list[Message], now: float) -> None:
        """Nobody will take these messages: end the halves in them in its stead (AQ-CLOSE-4)."""
        waiting = deque(dropped)
        while waiting:
            for attachment in waiting.popleft().attachments:
                self._was_lost(attachment.channel)
                half = self.halves.get(attachment.channel)
                if half is None:
                    continue
                if isinstance(half, Receiver):
                    waiting.extend(half.close())
                else:
                    half.owner = Owner.GONE
                    half.cancel(now)
                self.update(half, now)

    def settle_lineage(self, accessible: list[Node], now: float) -> None:
        """These channels became accessible: their senders may report and end."""
        for node in accessible:
            half = self.halves.get(node.channel)
            if isinstance(half, Sender):
                half.make_accessible()
                self.update(half, now)

    def lose(self, nodes: list[Node], carrier: int, now: float) -> None:
        """The messages that carried these channels are lost, and all below them (AQ-LIN-3)."""
        if not nodes:
            return
        for node, lineage in spread_lost(nodes, (carrier,)):
            half = self.halves.get(node.channel)
            if isinstance(half, Receiver):
                self._remove(half)
                self.abandon(half.drop(End.LOST, lineage), now)
            elif half is not None:
                self._remove(half)
                half.drop(End.LOST, lineage, now)
            if node.known:
                self.send_forget(node.channel, now)  # AQ-LIN-4

    def handle_forget(self, half: Half, now: float) -> None:
        """FORGET_CHANNEL from the channel's creator: it is gone (AQ-FORGET-1)."""
        if half.is_over() and half.owner is not Owner.NOBODY:
            return  # AQ-FORGET-3: it ended in good order, and its queue is the application's
        self._remove(half)
        self._graveyard.add(half.channel, now)
        if isinstance(half, Receiver):
            self.abandon(half.drop(End.LOST, ()), now)
        else:
            if half.owner is Owner.NOBODY and half.attached:
                self._remember_lost(half.channel)
            self.lose(half.drop(End.LOST, (), now), half.channel, now)

    def send_forget(self, channel: int, now: float) -> bool:
        """Tell the peer that a channel is no more, unless it was just told (AQ-FORGET-2)."""
        link = self._link
        expire(self._forgets, now - link.config.forget_interval)
        if channel in self._forgets:
            return False
        self._forgets[channel] = now
        stream = link.out.open(channel)  # AQ-STREAM-8
        link.out.write(stream, ForgetChannel().encode())
        link.out.finish(stream)
        return True

    def end_all(self, now: float) -> None:
        """The connection is over, and every half with it (AQ-CONN-7)."""
        halves = list(self.halves.values())
        self.halves.clear()
        self._lost_senders.clear()
        self._ours = self._of_peer = 0
        for half in halves:
            if isinstance(half, Sender):
                half.drop(End.CONNECTION, (), now)
            else:
                half.drop(End.CONNECTION, ())

    def leftovers(self) -> list[str]:
        """Describe counts that disagree with the table, and entries that are left behind."""
        made = [half for half in self.halves.values() if half.channel != ENTRYPOINT]
        ours = [half for half in made if creator_of(half.channel) == self._link.side]
        lingering = [half for half in made if half.lingers]
        counts = (
            ("channels of this side's creation", self._ours, len(ours)),
            ("halves that linger", self._link.lingering, len(lingering)),
            (
                "channels of the peer's creation",
                self._of_peer,
                len(made) - len(ours) - len(lingering),
            ),
        )
        left = [
            f"a count of {count} {what}, of which there are {there}"
            for what, count, there in counts
            if count != there
        ]
        if self._lost_senders:
            left.append(f"{len(self._lost_senders)} senders that were lost untaken")
        return left

    def _linger(self, half: Half, now: float) -> None:
        """The peer is done with a half that our application has yet to take (AQ-LIMIT-4).

        It no longer counts against the peer. A receiver keeps its queue; a sender keeps nothing.
        """
        if half.lingers or not half.attached or not half.is_over() or half.channel == ENTRYPOINT:
            return
        if creator_of(half.channel) == self._link.side:
            return
        if isinstance(half, Sender) and half.end is not None:
            self._remove(half)
            self._graveyard.add(half.channel, now)
            return
        half.lingers = True
        self._of_peer -= 1
        self._link.lingering += 1

    def _remember_lost(self, channel: int) -> None:
        """Remember a channel that was forgotten before its carrier was taken: a sender is lost."""
        if sender_of(channel) == self._link.side:
            self._lost_senders[channel] = None
            if len(self._lost_senders) > self._link.config.max_remembered:
                self._lost_senders.popitem(last=False)

    def _was_lost(self, channel: int) -> bool:
        """Return whether a sender was forgotten before its carrier was taken; remove its entry."""
        if channel not in self._lost_senders:
            return False
        del self._lost_senders[channel]
        return True

    def _remove(self, half: Half) -> None:
        channel = half.channel
        del self.halves[channel]
        if channel == ENTRYPOINT:
            return
        if half.lingers:
            self._link.lingering -= 1
        elif creator_of(channel) == self._link.side:
            self._ours -= 1
        else:
            self._of_peer -= 1

    def _answer_stray(self, channel: int, now: float) -> None:
        """A frame for a channel of ours that is no more (AQ-ROUTE-3)."""
        if not self.send_forget(channel, now):
            return  # the peer wrote before it could know
        config = self._link.config
        expire(self._provoked, now - config.forget_interval)
        self._provoked[channel] = now
        if len(self._provoked) > config.max_forgets:
            raise RemoteProtocolError(
                "AQ-LIMIT-7", "too many frames for channels that ended", CloseCode.LIMIT_EXCEEDED
            )
