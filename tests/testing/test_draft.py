"""The simulated peer that knows only the reference draft."""

from __future__ import annotations

import pytest

from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.events import Delivered, End, ReceiverEnded, SenderEnded
from aqueduct.testing.clock import seeded
from aqueduct.testing.draft import DraftCore
from aqueduct.testing.pair import Pair
from aqueduct.testing.plan import draw_plan
from aqueduct.testing.quic import Core
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    ForgetChannel,
    MessageFrame,
    RouteTo,
    SentUnreliable,
    Version,
)


def met(draft: Side) -> Pair:
    pair = Pair(delay=0.01, draft=draft)
    pair.run(0.1)
    return pair


def test_some_runs_have_such_a_peer_at_either_side() -> None:
    drawn = [draw_plan(seeded(seed, "plan")).draft for seed in range(200)]
    assert 10 < len([side for side in drawn if side is not None]) < 60
    assert set(drawn) == {None, Side.CLIENT, Side.SERVER}


@pytest.mark.parametrize("draft", list(Side))
@pytest.mark.parametrize("mode", list(Mode))
def test_messages_pass_in_both_directions_and_everything_ends(draft: Side, mode: Mode) -> None:
    pair = met(draft)
    pair.client.set_mode(ENTRYPOINT, mode)
    attach = [Attach(Give.SENDER), Attach(Give.RECEIVER, mode=mode)]
    back, there = pair.client.send_message(ENTRYPOINT, b"", attach=attach).channels
    pair.run(0.1)
    assert len(pair.server.take(ENTRYPOINT)) == 1
    pair.server.set_mode(back, mode)
    for number in range(3):
        pair.server.send(back, b"back %d" % number)
        pair.client.send(there, b"there %d" % number)
    pair.run(0.1)
    assert len(pair.client.take(back)) == len(pair.server.take(there)) == 3
    for channel, endpoint in ((ENTRYPOINT, pair.client), (there, pair.client), (back, pair.server)):
        endpoint.finish(channel)
    pair.run_until_idle()
    for endpoint in pair.endpoints:
        assert {event.how for event in endpoint.events_of(SenderEnded)} == {End.FINISHED}
        assert {event.how for event in endpoint.events_of(ReceiverEnded)} == {End.FINISHED}
        assert endpoint.events_of(Delivered)
    assert pair.leftovers() == []
    assert pair.violations() == []


def test_it_states_no_limits_and_gives_no_credit_back() -> None:
    pair = met(Side.SERVER)
    pair.client.send(ENTRYPOINT, b"x" * 60_000)
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    pair.run_until_idle()
    assert not pair.sent(Side.SERVER, Dequeued)
    (stated,) = pair.sent(Side.SERVER, ConnectionHeaders)
    assert stated.frame == ConnectionHeaders(())


def test_it_revives_a_ghost_which_our_side_makes_it_forget() -> None:
    """AQ-ROUTE-5: in virtual time, a second after the ghost was heard of."""
    pair = met(Side.SERVER)
    (channel,) = pair.client.send_message(
        ENTRYPOINT, b"", attach=[Attach(Give.RECEIVER, mode=Mode.UNRELIABLE)]
    ).channels
    pair.run(0.1)
    pair.server.take(ENTRYPOINT)
    pair.client.send(channel, b"in time")
    pair.client.finish(channel)
    pair.run(3.0)
    late = Version().encode() + RouteTo(channel).encode() + MessageFrame(0, (), (), b"").encode()
    pair.server.core.handle_datagram(late, pair.now)
    assert pair.server.core.leftovers() != []
    heard = pair.now
    pair.run_until_idle()
    (forget,) = pair.sent(Side.CLIENT, ForgetChannel)
    assert heard + 1.0 < forget.time < heard + 1.1
    assert all("ghost" not in line for line in pair.leftovers())


def test_it_never_announces_what_it_cancelled() -> None:
    """AQ-CLOSE-3: our side closes after a second all the same."""
    pair = met(Side.CLIENT)
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    pair.client.send(ENTRYPOINT, b"lost")
    pair.client.cancel(ENTRYPOINT)
    pair.run_until_idle()
    assert not pair.sent(Side.CLIENT, SentUnreliable)
    (cancel,) = pair.sent(Side.CLIENT, CancelSender)
    (close,) = pair.sent(Side.SERVER, CloseReceiver)
    assert cancel.time + 1.0 < close.time < cancel.time + 1.1
    assert pair.leftovers() == []


def test_it_answers_for_its_ended_channels_at_once() -> None:
    core: Core = DraftCore(Side.SERVER)
    assert isinstance(core, DraftCore)
    core.handle_stream_data(3, Version().encode() + b"\x02\x00", True, 0.0)
    core.accept((), 0.0)
    core.poll_actions()
    core.handle_datagram(RouteTo(0b01).encode(), 0.0)
    (answer,) = core.poll_actions()
    assert ForgetChannel().encode() in answer.data  # type: ignore[union-attr]
