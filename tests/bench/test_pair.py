"""Real pairs of processes, very briefly, to check that the benchmark works."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.network import processes
from bench.network.command import takes_part
from bench.network.measures import ALL, IPC_ALL, IPC_ROWS, ROWS
from bench.network.pair import QUICK, Pair
from bench.network.roster import IPC_PEERS, PEERS

BRIEF = replace(QUICK, seconds=0.02, warm=0.01, calls=20, fresh=2, probes=5, channels=400)


@pytest.mark.parametrize("peer", ["aqueduct", "aqueduct-tcp", "streams"])
def test_a_pair_yields_every_figure_of_every_measure(peer: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (one,) = (each for each in PEERS if each.name == peer)
    setting = processes.write_certificate(tmp_path, one.options)
    found = {}
    with processes.started(peer, setting, log) as (server, client, info):
        pair = Pair(server, client, info, BRIEF)
        for measure in ALL:
            if takes_part(one, measure):
                found[measure.name] = pair.measure(measure)
    for row in ROWS:
        if row.measure in found:
            assert found[row.measure][row.figure] >= 0, row
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("peer", "scheme"), [("aqueduct", "aqueduct+quic://"), ("aqueduct-tcp", "aqueduct+tcp://")]
)
def test_the_server_names_its_transport_so_that_clients_do_not_race(
    peer: str, scheme: str, tmp_path: Path
) -> None:
    (one,) = (each for each in PEERS if each.name == peer)
    setting = processes.write_certificate(tmp_path, one.options)
    with processes.started(peer, setting, tmp_path / "log") as (_, _, info):
        assert info["address"].startswith(scheme)


@pytest.mark.parametrize("name", ["ipc-udp", "unix"])
def test_a_pair_of_scalable_ipc_yields_every_figure(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (peer,) = (peer for peer in IPC_PEERS if peer.name == name)
    setting = processes.write_certificate(tmp_path, peer.options)
    with processes.started(name, setting, log) as (server, client, info):
        pair = Pair(server, client, info, BRIEF)
        found = {measure.name: pair.measure(measure) for measure in IPC_ALL}
    for row in IPC_ROWS:
        assert found[row.measure][row.figure] > 0, row
    assert "Traceback" not in log.read_text()


def test_a_process_that_ends_early_fails_the_run(tmp_path: Path) -> None:
    setting = replace(processes.write_certificate(tmp_path, {}), key="/nowhere")
    with (
        pytest.raises(processes.Failed, match="server ended early"),
        processes.started("streams", setting, tmp_path / "log"),
    ):
        pass
    assert "No such file" in (tmp_path / "log").read_text()
