import json

from bench.builds import pure
from bench.network import suite
from bench.network.measures import CHANNELS
from bench.network.pair import QUICK, Effort
from bench.network.report import Run, as_document, as_markdown, number
from bench.network.roster import PEERS


def a_run(effort: Effort | None = None, rounds: int = 3) -> Run:
    versions = {"Python": "3.11"}
    run = Run(suite.CHANNELS, PEERS, effort or Effort(), rounds, "Linux", versions, pure())
    for extra in range(rounds):
        run.add("aqueduct", {"R100": {"rate": 600_000.0 + 60_000 * extra, "disturbance": 0.01}})
        run.add("zenoh-quic", {"R100": {"rate": 550_000.0, "disturbance": None}})
        run.add("aqueduct-tcp", {"R100": {"rate": 1_100_000.0, "disturbance": 0.01}})
        run.add("zenoh-tls", {"R100": {"rate": 550_000.0, "disturbance": None}})
    run.found["aqueduct"][0]["MEMORY"] = {"client": 500.0, "server": 700.0}
    run.left_out["nats"] = "there is no nats-server on PATH"
    return run


def test_the_table_has_medians_with_spread_and_ratios() -> None:
    text = as_markdown(a_run())
    head, _, first = text.splitlines()[:3]
    assert head == (
        "|  |  | aqueduct | of zenoh-quic | aqueduct-tcp | of zenoh-tls | zenoh-quic | zenoh-tls |"
    )
    assert first == (
        "| 100-byte messages | messages/s | 660,000 ±9 % | 1.20 | 1,100,000 ±0 % | 2.00 "
        "| 550,000 ±0 % | 550,000 ±0 % |"
    )


def test_rows_without_figures_are_not_in_the_table() -> None:
    figures = as_markdown(a_run()).partition("| goal of")[0]
    assert "round trip" not in figures
    assert "100,000 live channels, peak memory of the client | MB | 500 |  |  |" in figures


def test_each_goal_is_met_not_met_or_not_measured() -> None:
    text = as_markdown(a_run())
    assert "| 100-byte messages | ≥ 1.5 times zenoh-quic | 1.20 | not met |" in text
    assert "| 100-byte messages | ≥ 1.5 times zenoh-tls | 2.00 | met |" in text
    assert "| 100,000 live channels, MB in the server | < 600 | 700 | not met |" in text
    assert "| round trip, p50 | ≤ 1 times zenoh-quic |  | not measured |" in text


def test_each_of_ours_that_was_selected_has_its_own_table_of_goals() -> None:
    _, over_quic, over_tcp = as_markdown(a_run()).split("| goal of ")
    assert over_quic.startswith("aqueduct |")
    assert over_tcp.startswith("aqueduct-tcp |")
    assert "zenoh-tls" not in over_quic.partition("\n\n")[0]
    assert "zenoh-quic" not in over_tcp.partition("\n\n")[0]
    run = a_run()
    run.peers = suite.CHANNELS.named(["aqueduct-tcp"])
    assert "| goal of aqueduct-tcp |" in as_markdown(run)
    assert "| goal of aqueduct |" not in as_markdown(run)


def test_a_goal_is_not_measured_with_fewer_channels_than_it_names() -> None:
    assert QUICK.channels < CHANNELS
    text = as_markdown(a_run(QUICK))
    assert "5,000 live channels, peak memory of the client | MB | 500" in text
    assert "| 100,000 live channels, MB in the client | < 600 |  | not measured |" in text


def test_the_report_lists_what_was_left_out_or_failed() -> None:
    run = a_run()
    run.failures.append("grpc: the server ended early")
    text = as_markdown(run)
    assert "- Left out: nats, since there is no nats-server on PATH." in text
    assert "- Failed: grpc: the server ended early" in text


def test_the_report_mentions_a_busy_machine() -> None:
    run = a_run()
    assert "Other work" not in as_markdown(run)
    run.found["zenoh-tls"][0]["R100"]["disturbance"] = 0.3
    assert "Other work had up to 30% of the machine" in as_markdown(run)


def test_one_run_has_no_spread() -> None:
    assert "±" not in as_markdown(a_run(rounds=1)).partition("| goal of")[0]


def test_the_document_is_json_with_every_run() -> None:
    document = json.loads(json.dumps(as_document(a_run())))
    assert document["medians"]["aqueduct"]["R100.rate"]["median"] == 660_000
    assert len(document["runs"]["aqueduct"]) == 3
    assert [goal["met"] for goal in document["goals"]].count(True) == 2


def test_an_empty_run_can_be_reported() -> None:
    run = Run(suite.CHANNELS, PEERS, Effort(), 3, "Linux", {}, pure())
    assert "not measured" in as_markdown(run)
    assert as_document(run)["medians"] == {}


def test_numbers_have_three_significant_digits_or_all_integer_digits() -> None:
    texts = [number(value) for value in (1234.5, 3.14159, 0.0, None)]
    assert texts == ["1,234", "3.14", "0", ""]


def test_another_suite_has_its_own_rows_goals_and_peers_to_compare_with() -> None:
    of_ipc = suite.IPC
    run = Run(of_ipc, of_ipc.peers, of_ipc.effort, 1, "Linux", {}, pure())
    run.add("ipc-udp", {"S100": {"p50": 60.0}, "F100": {"rate": 30_000.0}})
    run.add("zmq-router", {"S100": {"p50": 100.0}})
    text = as_markdown(run)
    assert "|  |  | ipc-udp | of zmq-router | zmq-router |" in text
    assert "| 100 bytes, one at a time, p50 | µs | 60 | 0.60 | 100 |" in text
    assert "| a lone message, p50 | ≤ 1.2 times zmq-router | 0.60 | met |" in text
    assert "| 100-byte messages/s, 256 in flight | ≥ 25,000 | 30,000 | met |" in text
    assert "MB/s | ≥ 300 |  | not measured |" in text


def test_the_remark_of_a_peer_is_reported_once() -> None:
    of_ingest = suite.INGEST
    run = Run(of_ingest, of_ingest.peers, of_ingest.effort, 2, "Linux", {}, pure())
    for _ in range(2):
        run.add("aqueduct", {"STORE1": {"rate": 300_000.0, "remark": ""}})
        run.add("jetstream", {"STORE1": {"rate": 30_000.0, "remark": "it does not sync"}})
    text = as_markdown(run)
    assert text.count("- jetstream: it does not sync.") == 1
    assert "- A server and up to eight producers, each a process, medians of 2 runs" in text
    assert "| durable records/s, 1 producer | ≥ 150,000 | 300,000 | met |" in text
