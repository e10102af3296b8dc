"""A dead peer is noticed in time, in every mode and under every load; the rest stay connected."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aqueduct.errors import CloseCode, WouldBlock
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.events import ConnectionEnded
from aqueduct.testing.faults import Faults
from aqueduct.testing.pair import Pair
from aqueduct.transport.address import Address
from aqueduct.transport.liveness import NEVER, Liveness, Verdict
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.endpoint import destination_id
from aqueduct.transport.quic.engine import Engine
from aqueduct.transport.quic.resets import StatelessResets
from aqueduct.transport.quic.tls import EngineConfiguration
from aqueduct.transport.settings import QuicSettings
from aqueduct.wire.chanid import ENTRYPOINT, Side
from tests.transport.quic.virtual import ADDRESSES, RealQuic

PAGE = Path(__file__).parents[3] / "docs" / "quic.md"
EVERY = 0.01
"""Seconds between two messages of a client that sends."""
LOADS = ("idle", "sending")
SETTINGS = {
    "defaults": QuicSettings(),
    "`keep_alive=None`": QuicSettings(keep_alive=None),
    "`idle_timeout=1`": QuicSettings(idle_timeout=1),
}
SERVER = "127.0.0.1:2222"


class MortalServer(RealQuic):
    """A server that can be killed, and perhaps started again at once."""

    server_idle_timeout: float | None = None
    is_killed = is_restarted = False
    deaf: tuple[Side, ...] = ()
    """The sides that get no packets."""
    heard_at = 0.0
    """When the client got the last packet of the server."""
    resets: StatelessResets

    def end_server(self, *, restart: bool) -> None:
        """End the server's process, which tells nobody."""
        self.bridges[Side.SERVER] = None
        self._alive[Side.SERVER] = False
        self.is_killed, self.is_restarted = True, restart

    def new_server(self, settings: EngineConfiguration, original: bytes) -> Engine:
        """Return the QUIC connection of the server."""
        if self.server_idle_timeout is not None:
            settings.idle_timeout = self.server_idle_timeout
        quic = super().new_server(settings, original)
        self.resets = StatelessResets(b"key", "host", SERVER, 1_000, lambda: self.clock.now)
        quic.reset_token = self.resets.token(quic.host_cid)
        return quic

    def _arrive(self, arrival: tuple[Side, bytes, Address]) -> None:
        side, data, _ = arrival
        if side in self.deaf:
            return
        if side is Side.CLIENT and not self.is_killed:
            self.heard_at = self.clock.now
        if side is Side.SERVER and self.is_restarted:
            answer = self.resets.answer(destination_id(data), len(data))
            if answer is not None:
                reply = (Side.CLIENT, answer, ADDRESSES[Side.SERVER])
                self.clock.at(self.clock.now + self.faults.delay, self._arrive, reply)
            return
        super()._arrive(arrival)


@dataclass
class Mortal:
    """A pair whose server can be killed."""

    pair: Pair
    network: MortalServer

    def live(self, seconds: float, load: str = "idle") -> None:
        """Let time pass, with or without messages of the client, until its connection has ended."""
        until = self.pair.now + seconds
        while self.pair.now < until and not self.end():
            if load == "sending":
                with suppress(WouldBlock):
                    self.pair.client.send(ENTRYPOINT, b"x" * 100)
            self.pair.run(EVERY)
            self.pair.server.take(ENTRYPOINT)

    def end(self) -> ConnectionEnded | None:
        """How the client's connection ended, if it did."""
        ended = self.pair.client.events_of(ConnectionEnded)
        return ended[0] if ended else None


def mortal(
    monkeypatch: pytest.MonkeyPatch,
    settings: QuicSettings,
    mode: Mode = Mode.ORDERED,
    *,
    server_idle_timeout: float | None = None,
) -> Mortal:
    class Network(MortalServer):
        options = settings

    Network.server_idle_timeout = server_idle_timeout
    monkeypatch.setattr("aqueduct.testing.pair.FakeQuic", Network)
    pair = Pair(0, faults=Faults(delay=0.01))
    network: object = pair.network
    assert isinstance(network, Network)
    network.shake_hands()
    pair.run(0.2)
    pair.client.set_mode(ENTRYPOINT, mode)
    return Mortal(pair, network)


def notice(
    monkeypatch: pytest.MonkeyPatch,
    settings: QuicSettings,
    mode: Mode,
    load: str,
    *,
    restart: bool,
) -> tuple[float, ConnectionEnded | None]:
    """Return how long after the last packet of a killed server its client notices, and how."""
    here = mortal(monkeypatch, settings, mode)
    here.live(1.0, "sending")
    if load == "idle":
        here.live(0.5)
    here.network.end_server(restart=restart)
    here.live(60.0, load)
    return here.pair.now - here.network.heard_at, here.end()


def measured_row(monkeypatch: pytest.MonkeyPatch, mode: Mode, load: str) -> str:
    """Return the row of the table in the documentation."""
    cells = []
    for restart in (False, True):
        for settings in SETTINGS.values():
            took, end = notice(monkeypatch, settings, mode, load, restart=restart)
            text = "at once" if took < 0.1 else f"{took:.1f} s"
            cells.append("never" if end is None else text)
    return f"| {mode.value} | {load} | {' | '.join(cells)} |"


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("mode", list(Mode))
def test_a_dead_peer_is_noticed_as_the_documentation_says(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, load: str
) -> None:
    """AQ-IDLE-1."""
    row = measured_row(monkeypatch, mode, load)
    assert row in PAGE.read_text().splitlines(), row


@pytest.mark.parametrize("load", LOADS)
def test_the_error_says_how_long_nothing_came_and_from_whom(
    monkeypatch: pytest.MonkeyPatch, load: str
) -> None:
    """AQ-IDLE-1."""
    _, end = notice(monkeypatch, QuicSettings(), Mode.ORDERED, load, restart=False)
    assert end is not None
    assert (end.code, end.by_peer) == (CloseCode.IDLE, False)
    assert re.fullmatch(r"nothing came from 127\.0\.0\.1:2222 for 15\.\d s", end.reason)


def test_a_restarted_server_is_told_from_one_that_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-IDLE-3."""
    took, end = notice(monkeypatch, QuicSettings(), Mode.ORDERED, "sending", restart=True)
    assert took < 0.1
    assert end is not None
    assert (end.code, end.by_peer) == (CloseCode.TRANSPORT, False)
    assert end.reason == f"{SERVER} no longer knows this connection; it may have been restarted"


def test_a_reset_with_another_token_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """AQ-IDLE-3."""
    here = mortal(monkeypatch, QuicSettings())
    other = StatelessResets(b"another key", "host", SERVER, 1_000, lambda: 0.0)
    here.network.resets = other
    here.network.end_server(restart=True)
    here.live(10.0, "sending")
    assert here.end() is None
    here.live(6.0, "sending")
    end = here.end()
    assert end is not None
    assert end.code == CloseCode.IDLE


def test_a_peer_is_told_that_it_was_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """AQ-IDLE-1: the way back may be the only one that is broken."""
    here = mortal(monkeypatch, QuicSettings(idle_timeout=2))
    here.network.deaf = (Side.CLIENT,)
    here.live(10.0, "sending")
    here.pair.run(1.0)
    (server,) = here.pair.server.events_of(ConnectionEnded)
    assert (server.code, server.by_peer) == (CloseCode.IDLE, True)


@pytest.mark.parametrize("keep_alive", [0.5, 5.0, 3_600.0])
def test_an_idle_connection_with_keep_alive_lives(
    monkeypatch: pytest.MonkeyPatch, keep_alive: float
) -> None:
    """AQ-IDLE-2: a longer interval counts as a third of the idle timeout."""
    here = mortal(monkeypatch, QuicSettings(idle_timeout=6, keep_alive=keep_alive))
    sent = here.network.packets[Side.CLIENT]
    here.live(60.0)
    assert here.end() is None
    pings = 60.0 / min(2.0, keep_alive)
    assert 0.5 * pings < here.network.packets[Side.CLIENT] - sent < 3 * pings


def test_an_idle_connection_survives_the_loss_of_two_pings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-IDLE-2."""
    here = mortal(monkeypatch, QuicSettings())
    here.network.deaf = tuple(Side)
    here.live(11.0)
    here.network.deaf = ()
    here.live(20.0)
    assert here.end() is None


def test_an_idle_connection_without_keep_alive_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """AQ-IDLE-1: a silent peer is a dead one."""
    here = mortal(monkeypatch, QuicSettings(idle_timeout=3, keep_alive=None))
    here.live(60.0)
    end = here.end()
    assert end is not None
    assert end.code == CloseCode.IDLE
    assert here.pair.now - here.network.heard_at == pytest.approx(3.0, abs=0.1)


def test_the_smaller_idle_timeout_of_both_sides_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """AQ-IDLE-1: pings of the client with the longer one keep the connection open, too."""
    here = mortal(monkeypatch, QuicSettings(), server_idle_timeout=2.0)
    here.live(30.0)
    assert here.end() is None
    here.network.end_server(restart=False)
    here.live(60.0)
    assert here.pair.now - here.network.heard_at == pytest.approx(2.0, abs=0.1)


def test_packets_that_are_not_authentic_do_not_keep_a_peer_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-IDLE-1: neither forged packets nor recorded ones that are sent again."""
    here = mortal(monkeypatch, QuicSettings(idle_timeout=2))
    bridge = here.network.bridges[Side.CLIENT]
    assert bridge is not None
    recorded: list[bytes] = []
    receive = bridge.receive

    def record(data: bytes, segment: int, address: Address, now: float) -> None:
        recorded.append(data)
        receive(data, segment, address, now)

    monkeypatch.setattr(bridge, "receive", record)
    here.live(0.5, "sending")
    here.network.end_server(restart=False)
    while not here.end() and here.pair.now < here.network.heard_at + 10:
        for data in (recorded[-1], recorded[-1][:-1] + b"?"):
            receive(data, len(data), ADDRESSES[Side.SERVER], here.pair.now)
        here.live(0.1, "sending")
    assert here.pair.now - here.network.heard_at == pytest.approx(2.0, abs=0.15)


# -- planted faults -------------------------------------------------------------------------------


def _hear_what_this_side_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Bridge.flush

    def flush_and_hear(bridge: Bridge, now: float) -> Any:
        packets = flush(bridge, now)
        if packets:
            bridge.quic.heard_at = now
        return packets

    monkeypatch.setattr(Bridge, "flush", flush_and_hear)


def _postpone_while_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Bridge.flush

    def flush_and_postpone(bridge: Bridge, now: float) -> Any:
        packets = flush(bridge, now)
        if packets and bridge._liveness.due_at < NEVER:
            bridge._liveness.due_at = max(bridge._liveness.due_at, now + 1)
        return packets

    monkeypatch.setattr(Bridge, "flush", flush_and_postpone)


def _count_pings_as_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Liveness.check

    def check_and_hear(liveness: Liveness, now: float) -> Verdict:
        verdict = check(liveness, now)
        if verdict is Verdict.PING:
            liveness._hearing.heard_at = now
        return verdict

    monkeypatch.setattr(Liveness, "check", check_and_hear)


def _ignore_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatelessResets, "answer", lambda *_: None)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "what this side sends counts as a sign of life": _hear_what_this_side_sends,
    "silence is not noticed while sending": _postpone_while_sending,
    "a ping counts as a sign of life": _count_pings_as_signs_of_life,
    "a restarted server stays silent": _ignore_resets,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_table_would_show_a_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](monkeypatch)
    rows = PAGE.read_text().splitlines()
    assert any(measured_row(monkeypatch, Mode.ORDERED, load) not in rows for load in LOADS)


# -- alone ----------------------------------------------------------------------------------------


class SilentQuic(SimpleNamespace):
    """What `Liveness` needs of a connection."""

    heard_at = 0.0
    idle_timeout = 15.0
    peer_idle_timeout: float | None = None
    probe = 0.1

    def probe_timeout(self) -> float:
        return self.probe


def watched(keep_alive: float | None = 5.0, **state: float) -> tuple[SilentQuic, Liveness]:
    quic = SilentQuic(**state)
    liveness = Liveness(quic, keep_alive, Side.SERVER)
    liveness.start(0.0)
    return quic, liveness


def test_a_process_that_did_not_run_asks_before_it_takes_its_peer_for_dead() -> None:
    """AQ-IDLE-1: the time in which it did not run does not count."""
    _, liveness = watched()
    assert liveness.check(100.0) is Verdict.PING
    assert liveness.due_at == pytest.approx(105.0)
    assert liveness.check(105.0) is Verdict.DEAD


def test_a_process_that_never_runs_in_time_notices_a_dead_peer() -> None:
    """AQ-IDLE-1."""
    _, liveness = watched()
    assert liveness.check(100.0) is Verdict.PING
    assert liveness.check(200.0) is Verdict.DEAD


def test_a_peer_that_answers_after_a_pause_is_alive() -> None:
    quic, liveness = watched()
    assert liveness.check(100.0) is Verdict.PING
    quic.heard_at = 100.1
    assert liveness.check(105.0) is Verdict.WAIT
    assert liveness.due_at == pytest.approx(105.1)


def test_three_probe_timeouts_are_the_least() -> None:
    """AQ-IDLE-1: a packet and its ack have to fit in."""
    _, liveness = watched(None, idle_timeout=1.0, probe=2.0)
    assert liveness.due_at == pytest.approx(6.0)


def test_a_peer_cannot_make_this_side_ping_all_the_time() -> None:
    """AQ-IDLE-1."""
    _, liveness = watched(5.0, peer_idle_timeout=0.001, probe=0.001)
    assert liveness.due_at == pytest.approx(1 / 3)


@pytest.mark.parametrize("keep_alive", [1.0, 5.0, 60.0])
@pytest.mark.parametrize("delay", [0.0, 0.09])
def test_an_idle_client_keeps_the_connection_open_without_pings_of_the_server(
    keep_alive: float, delay: float
) -> None:
    """AQ-IDLE-2: a server with many idle connections has half of the work."""
    hearing = {side: SilentQuic() for side in Side}
    sides = {side: Liveness(hearing[side], keep_alive, side) for side in Side}
    for one in sides.values():
        one.start(0.0)
    pings = dict.fromkeys(Side, 0)
    while (now := min(one.due_at for one in sides.values())) < 100.0:
        for side, one in sides.items():
            if one.due_at <= now:
                verdict = one.check(now)
                assert verdict is not Verdict.DEAD
                if verdict is Verdict.PING:
                    pings[side] += 1
                    hearing[side.other].heard_at = now + delay / 2
                    hearing[side].heard_at = now + delay
    assert pings[Side.SERVER] == 0
    assert pings[Side.CLIENT] >= 100.0 / (min(keep_alive, 5.0) + delay)


def test_nothing_is_due_before_the_handshake_and_after_the_end() -> None:
    _, liveness = watched()
    assert Liveness(SilentQuic(), 5.0, Side.SERVER).due_at == NEVER
    liveness.stop()
    assert liveness.due_at == NEVER
