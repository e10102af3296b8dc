from pathlib import Path

import pytest

from bench.ingest.broker import can_sync_always, remark, version


def a_server(directory: Path, status: int) -> str:
    program = directory / "nats-server"
    program.write_text(f'#!/bin/sh\necho "nats-server: v2.10.4"\nexit {status}\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(("status", "can"), [(0, True), (1, False)])
def test_a_server_is_probed_for_sync_support(tmp_path: Path, status: int, can: bool) -> None:
    assert can_sync_always(a_server(tmp_path, status)) is can


def test_the_version_is_that_of_the_program(tmp_path: Path) -> None:
    assert version(a_server(tmp_path, 0)) == "2.10.4"


def test_the_report_says_whether_it_synced() -> None:
    assert remark("2.10.4", syncs=True) == "nats-server 2.10.4 with sync_interval: always"
    assert "not durable" in remark("2.9.10", syncs=False)
