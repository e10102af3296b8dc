import pytest

from bench.__main__ import main
from bench.network import suite
from bench.network.command import parse_arguments, takes_part
from bench.network.measures import ALL, INGEST_ALL
from bench.network.roster import INGEST_PEERS, PEERS


def test_all_measures_run_three_times_by_default() -> None:
    arguments = parse_arguments(suite.CHANNELS, [])
    assert len(arguments.only) == 13
    assert arguments.peer[0].name == "aqueduct"
    assert arguments.runs == 3


def test_measures_and_peers_can_be_selected_and_ours_are_included() -> None:
    arguments = parse_arguments(suite.CHANNELS, ["--only", "L,R100", "--peer", "zenoh-tls"])
    assert [measure.name for measure in arguments.only] == ["R100", "L"]
    assert [peer.name for peer in arguments.peer] == ["aqueduct", "aqueduct-tcp", "zenoh-tls"]


def test_one_of_ours_can_be_selected() -> None:
    arguments = parse_arguments(suite.CHANNELS, ["--peer", "zenoh-tls,aqueduct-tcp"])
    assert [peer.name for peer in arguments.peer] == ["aqueduct-tcp", "zenoh-tls"]


def test_channels_are_measured_alike_over_both_transports() -> None:
    took = {
        peer.name: [measure.name for measure in ALL if takes_part(peer, measure)] for peer in PEERS
    }
    assert took["aqueduct"] == took["aqueduct-tcp"] == [measure.name for measure in ALL]
    assert took["zenoh-quic"] == took["zenoh-tls"]


def test_each_suite_has_its_own_measures_and_peers() -> None:
    arguments = parse_arguments(suite.IPC, ["--only", "F100", "--peer", "unix"])
    assert [measure.name for measure in arguments.only] == ["F100"]
    assert [peer.name for peer in arguments.peer] == ["ipc-udp", "unix"]


def test_a_peer_runs_only_the_measures_that_apply_to_it() -> None:
    took = {
        peer.name: [measure.name for measure in INGEST_ALL if takes_part(peer, measure)]
        for peer in INGEST_PEERS
    }
    assert took["aqueduct"] == [measure.name for measure in INGEST_ALL]
    assert took["jetstream"] == ["PACE", "STORE1", "STORE8", "STORE10K", "PEAK"]
    assert took["floor"] == ["STORE1", "STORE10K", "PEAK"]


@pytest.mark.parametrize("words", [["--only", "R99"], ["--peer", "carrier-pigeon"]])
def test_an_unknown_name_is_rejected_with_the_known_names(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(suite.CHANNELS, words)
    assert "there are" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["core", "channels", "ipc", "ingest"])
def test_help_has_examples(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([kind, "--help"])
    assert f"python -m bench {kind} --only" in capsys.readouterr().out


def test_without_a_kind_of_benchmark_the_kinds_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert "bench core" in capsys.readouterr().err
    assert main(["--help"]) == 0
