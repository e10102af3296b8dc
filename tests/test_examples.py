"""Every example runs, and prints the expected output."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

EXPECTED = {
    "rpc": r"""10 / 4 = 2\.5
1 / 0: cannot divide 1 by zero
halves: \[0\.0, 0\.5, 1\.0, 1\.5, 2\.0\]
""",
    "upload": r"""the server has 25 %
the server has 50 %
the server has 75 %
the server has 100 %
stored intact: True
""",
    "pubsub": r"(?s)published 'too early' to 0\n.*published 'first' to 2\n"
    r".*(published 'second' to 1\nann: second|ann: second\npublished 'second' to 1)\n",
    "actor": r"""ann takes 30: yes
ann takes 80: no
ann has 70
the account of ann is closed with 70
""",
    "telemetry": r"""sent 200, arrived \d+, lost \d+
everything is accounted for: True
the last reading was (delivered|lost)
""",
    "lost_carrier": r"""40 jobs done, \d+ messages sent
some were lost and sent again: True
""",
    "ingest": r"""stored 600 readings, then the producer stopped
the next producer continues after reading 600
each of 1000 readings is stored once: True
kitchen is in one partition, in order: True
the directory matches the server: True
""",
    "conversation": r"(?s).*two processes, one connection.*a request: primes below 100"
    r".*progress: 25, unreliable"
    r".*25 primes, in order, all acknowledged.*the client has closed the connection.*",
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_the_expected_output(name: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        env={**os.environ, "AQUEDUCT_DEV_DIR": str(tmp_path), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(EXPECTED[name], ran.stdout), ran.stdout
    assert ran.stderr == ""


def test_a_call_that_was_given_up_does_not_affect_other_calls() -> None:
    source = (EXAMPLES / "rpc.py").read_text(encoding="utf-8")
    more = """
async def give_up() -> None:
    async with aqueduct.serve("127.0.0.1:0", Divide, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.serve(divide))
        trust = aqueduct.dev_trust()
        async with aqueduct.connect(server.address, Divide, trust=trust) as connection:
            calling = asyncio.create_task(connection.entrypoint.call(Divide(1, 2)))
            await asyncio.sleep(0)
            calling.cancel()
            print(await connection.entrypoint.call(Divide(6, 2)))
        serving.cancel()

asyncio.run(give_up())
"""
    command = [sys.executable, "-W", "error", "-c", source + more]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.endswith("3.0\n"), ran.stderr
