"""Threads and fork: a worker process that dies, and a connection that is used after a fork."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import aqueduct
from aqueduct import blocking
from examples.threads import Square, answer

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import os, sys, warnings
import aqueduct
from aqueduct import blocking
from examples.threads import Square

warnings.simplefilter("ignore")  # newer Pythons advise against a fork with threads
connection = blocking.connect(sys.argv[1], Square, trust=aqueduct.dev_trust())
child = os.fork()
if child == 0:
    try:
        connection.entrypoint.call(Square(number=2), timeout=60)
    except aqueduct.ForkedConnectionError:
        with blocking.connect(sys.argv[1], Square, trust=aqueduct.dev_trust()) as mine:
            os._exit(mine.entrypoint.call(Square(number=3), timeout=30))
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(connection.entrypoint.call(Square(number=4), timeout=30), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_child_connects_by_itself_and_a_killed_process_harms_no_other() -> None:
    with blocking.serve("127.0.0.1:0", Square, tls=aqueduct.dev_tls()) as server:
        serving = threading.Thread(target=server.serve, args=(answer,))
        serving.start()
        with blocking.connect(server.address, Square, trust=aqueduct.dev_trust()) as connection:
            ran = subprocess.run(
                [sys.executable, "-c", SCRIPT, server.address],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (ran.stdout, ran.returncode) == ("9\n16\n", -9), ran.stderr
            assert connection.entrypoint.call(Square(number=5), timeout=30) == 25
    serving.join(60)
    assert not serving.is_alive()
