"""Random commands and input: only documented errors are raised, and honest sides agree."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aqueduct.errors import CloseCode
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
)
from aqueduct.wire.chanid import Side
from tests.protocol.chaos import CRAMPED, FAIR, Application, ChaoticPeer, Watch, shake
from tests.protocol.wires import Direction, Pair

randoms = st.integers(0, 2**32 - 1).map(Random)
"""Seeds instead of steps: a run is long, and shrinking it step by step would not help."""

plays = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def play(
    core: ConnectionCore, random: Random, steps: int, *, strange: float, greeted: bool
) -> Watch:
    """Run an application and a peer against one core, until the steps or the connection end."""
    watch = Watch(core)
    peer = ChaoticPeer(core, random, strange=strange)
    application = Application(core, random, strange=5 * strange)
    now = 100.0
    peer.hello(now)
    if greeted:
        peer.greet(now)
        if core.side == Side.SERVER:
            core.accept((), now)
    for _ in range(steps):
        dice = random.random()
        if dice < 0.45:
            application.step(now)
        elif dice < 0.9:
            peer.step(now)
        elif dice < 0.97:
            now += random.choice([0.0, 0.001, 0.01, 0.03, 0.06, 1.1])
            core.handle_timer(now)
        elif dice < 0.98:
            core.handle_rtt(random.choice([0.0, 0.1, 3.0]))
        elif not greeted:
            peer.greet(now)
            greeted = True
            if core.side == Side.SERVER and not watch.over and random.random() < 0.9:
                watch.check()
                if not watch.over:
                    core.accept((), now)
        if random.random() < 0.7:
            watch.poll()
        watch.check()
        if watch.over:
            break
    if not watch.over:
        core.close_connection(CloseCode.NO_ERROR, "the end", now)
    watch.check()
    watch.poll()
    assert watch.over
    assert core.poll_actions() == []
    return watch


@pytest.mark.parametrize("strange", [0.0, 0.01, 0.1])
@given(st.sampled_from(Side), st.integers(0, 9), randoms)
@plays
def test_random_commands_and_inputs_raise_only_documented_errors(
    strange: float, side: Side, late: int, random: Random
) -> None:
    """AQ-CODE-3: commands raise documented errors only, and inputs raise nothing."""
    play(ConnectionCore(side, CRAMPED), random, 250, strange=strange, greeted=late > 0)


@given(st.sampled_from(Side), st.sampled_from(["lost", "closed", "violation"]), randoms)
@plays
def test_an_ended_connection_ignores_commands_and_inputs(
    side: Side, how: str, random: Random
) -> None:
    """AQ-CODE-3 and AQ-CONN-7: no actions, no events, no state."""
    core = ConnectionCore(side, CRAMPED)
    peer = ChaoticPeer(core, random, strange=0.0)
    application = Application(core, random, strange=0.5)
    peer.hello(1.0)
    peer.greet(1.0)
    if side == Side.SERVER:
        core.accept((), 1.0)
    for _ in range(30):
        application.step(1.0)
        peer.step(1.0)
    core.poll_events()
    if how == "lost":
        core.handle_connection_lost(0, "", True, 1.0)
    elif how == "closed":
        core.close_connection(CloseCode.NO_ERROR, "", 1.0)
    else:
        core.handle_stream_data(10**6, b"\xff", False, 1.0)
    core.poll_actions()
    core.poll_events()
    for _ in range(30):
        application.step(2.0)
        peer.step(2.0)
        core.handle_timer(3.0)
        assert core.poll_actions() == []
        assert core.poll_events() == []
        assert core.leftovers() == []
        assert core.held_bytes == 0
        assert core.next_timer() is None


class Ledger:
    """The ends of channels and fates of messages that were reported to one application."""

    def __init__(self, core: ConnectionCore) -> None:
        self.watch = Watch(core)
        self.ended: set[tuple[type[object], int]] = set()
        self.fates: dict[tuple[int, bool, int], bool] = {}

    def read(self) -> None:
        for event in self.watch.check():
            assert not isinstance(event, ConnectionEnded), event
            if isinstance(event, SenderEnded | ReceiverEnded):
                key = (type(event), event.channel)
                assert key not in self.ended, f"{event} came twice"
                self.ended.add(key)
            elif isinstance(event, Delivered | Undelivered):
                assert (SenderEnded, event.channel) not in self.ended, event
                for start, stop in event.ranges:
                    for number in range(start, stop):
                        message = (event.channel, event.reliable, number)
                        assert message not in self.fates, f"a second fate: {event}"
                        self.fates[message] = isinstance(event, Delivered)


@given(randoms, st.sampled_from([0.0, 0.3]))
@plays
def test_two_honest_sides_report_no_violation_and_leave_nothing(
    random: Random, loss: float
) -> None:
    """Each message has one fate, and no state is left."""
    pair = Pair(FAIR, FAIR)
    sides = (pair.client, pair.server)
    applications = [Application(core, random, strange=0.0) for core in sides]
    ledgers = [Ledger(core) for core in sides]

    def deliver(direction: Direction, lost: float) -> None:
        shake(direction, random, loss=lost)
        for ledger in ledgers:
            ledger.read()

    for _ in range(250):
        dice = random.random()
        if dice < 0.5:
            random.choice(applications).step(pair.now)
        elif dice < 0.9:
            deliver(random.choice([pair.to_server, pair.to_client]), loss)
        else:
            pair.now += random.choice([0.001, 0.01, 0.03, 0.06, 1.1])
            for core in sides:
                core.handle_timer(pair.now)

    for _ in range(30):
        pair.now += 0.2
        for core, application in zip(sides, applications, strict=True):
            core.handle_timer(pair.now)
            application.wind_up(pair.now)
        for _ in range(4):
            deliver(pair.to_server, 0.0)
            deliver(pair.to_client, 0.0)
    assert pair.client.leftovers() == []
    assert pair.server.leftovers() == []
