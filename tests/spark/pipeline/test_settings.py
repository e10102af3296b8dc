"""Invalid settings are reported before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from aqueduct.spark.pipeline.settings import PipelineError, PipelineSettings

GOOD_MASTERS = ["local", "local[2]", "local[*]", "local[2,2]", "spark://host:7077", "yarn"]


@pytest.mark.parametrize("master", [*GOOD_MASTERS, "local-cluster[2,1,1024]", "k8s://https://h:1"])
def test_master_urls_of_spark_are_accepted(tmp_path: Path, master: str) -> None:
    PipelineSettings(out=tmp_path, master=master).check()


@pytest.mark.parametrize("scheme", ["", "aqueduct+quic://", "aqueduct+tcp://"])
def test_a_server_may_name_its_transport(tmp_path: Path, scheme: str) -> None:
    PipelineSettings(out=tmp_path, servers=(f"{scheme}host:1",), listen=f"{scheme}[::1]:0").check()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"master": "lokal[2]"}, "'lokal\\[2\\]' is not a master URL of Spark"),
        ({"servers": ("host",)}, "'host' is not of the form host:port"),
        ({"servers": ("host:70000",)}, "'host:70000' is not"),
        ({"servers": ("host:1", "host:1")}, "a server twice"),
        ({"topic": "a/b"}, "'a/b'"),
        ({"devices": 0}, "from 1 to 1,000"),
        ({"devices": 1_001}, "from 1 to 1,000"),
        ({"loss": 0.5}, "from 0 to 0.3"),
        ({"rate": 5, "devices": 10}, "at least one record per second"),
        ({"trigger": 0.0}, "at least 0.1"),
        ({"duration": -1.0}, "at least 0"),
        ({"rate": float("nan")}, "at least one record"),
        ({"spark": {"executor.memory": "1g"}}, "'executor.memory' is not a Spark property"),
        ({"spark": {"spark.": "1g"}}, "'spark.' is not a Spark property"),
        ({"spark": {"spark.master": "local"}}, "use --master"),
    ],
)
def test_an_error_names_the_invalid_setting(
    tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(PipelineError, match=says):
        PipelineSettings(**{"out": tmp_path, **wrong}).check()


def test_a_directory_that_is_not_empty_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "readings").mkdir()
    with pytest.raises(PipelineError, match="is not empty"):
        PipelineSettings(out=tmp_path).check()
    with pytest.raises(PipelineError, match="is not empty"):
        PipelineSettings(out=Path(__file__)).check()
    PipelineSettings(out=tmp_path / "new" / "one").check()


def test_a_directory_of_a_failed_start_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "spark.log").write_text("Java does not start")
    PipelineSettings(out=tmp_path).check()


def test_spark_reads_files_only_with_a_local_master_and_server(tmp_path: Path) -> None:
    assert PipelineSettings(out=tmp_path).reads_files
    assert not PipelineSettings(out=tmp_path, servers=("host:1",)).reads_files
    assert not PipelineSettings(out=tmp_path, master="spark://host:7077").reads_files


def test_each_of_several_servers_has_a_topic(tmp_path: Path) -> None:
    assert PipelineSettings(out=tmp_path, servers=("a:1",)).topics == ("telemetry",)
    several = PipelineSettings(out=tmp_path, servers=("a:1", "b:1"), topic="t")
    assert several.topics == ("t-1", "t-2")


def test_the_token_is_not_in_the_repr(tmp_path: Path) -> None:
    assert "secret" not in repr(PipelineSettings(out=tmp_path, token="secret"))


def test_an_unreachable_master_is_reported_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        good = f"127.0.0.1:{there.getsockname()[1]}"
        PipelineSettings(out=tmp_path, master=f"spark://{good}").check_master()
        PipelineSettings(out=tmp_path, master=f"spark://127.0.0.1:1,{good}").check_master()
    with pytest.raises(
        PipelineError, match=r"does not answer \(127\.0\.0\.1:1: .*check that a master"
    ):
        PipelineSettings(out=tmp_path, master="spark://127.0.0.1:1").check_master()
    PipelineSettings(out=tmp_path, master="yarn").check_master()
