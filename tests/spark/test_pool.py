"""Connections that are kept, and by whom."""

from __future__ import annotations

import os

from aqueduct.errors import ConnectionLost
from aqueduct.spark.pool import Pool


class Connection:
    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = 0

    def end(self) -> None:
        self.ended += 1
        raise ConnectionLost("gone already")


def test_a_connection_is_made_once_for_each() -> None:
    pool = Pool(Connection, Connection.end)
    kept = pool.get("a")
    assert pool.get("a") is kept
    assert pool.get("b") is not kept


def test_one_that_was_dropped_is_ended_and_made_anew() -> None:
    pool = Pool(Connection, Connection.end)
    kept = pool.get("a")
    pool.drop("a")
    pool.drop("a")
    assert kept.ended == 1
    assert pool.get("a") is not kept


def test_a_fork_makes_its_own() -> None:
    pool = Pool(Connection, Connection.end)
    kept = pool.get("a")
    child = os.fork()
    if child == 0:
        os._exit(0 if pool.get("a") is not kept else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.get("a") is kept
