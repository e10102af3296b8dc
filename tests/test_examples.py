"""Every example runs, and prints the expected output."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

EXPECTED = {
    "rpc": r"""color is blue
loaded 3
\['number-0', 'number-1', 'number-2'\]
deleted: True
not-found: no key 'color'
""",
    "chat": r"""ann sees Joined\(name='ann'\)
ann sees Joined\(name='bob'\)
bob sees Joined\(name='ann'\)
bob sees Joined\(name='bob'\)
bob sees Said\(name='ann', text='hello, bob'\)
ann sees Said\(name='ann', text='hello, bob'\)
ann sees Left\(name='bob'\)
""",
    "jobs": r"""easy is done, attempt 1
flaky is done, attempt 3
broken: job-failed: 3 attempts, the last one: no such file
slow: gave up, which cancels the job
next is done, attempt 1
""",
    "reconnect": r"""60 readings stored over 2 connections
each once, in order: True
""",
    "threads": "2 processes with 4 threads each: 2470\n",
    "ipc": r"\['ONE', 'TWO', 'THREE'\]\n",
    "shop": r"missing: \['cups'\]\n",
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
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert {name for name in programs if not name.startswith("test_")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_serves_requests_so_that_no_caller_waits_for_ever(name: str) -> None:
    """A loop over an entrypoint may keep a request alive, and with it the reply that is awaited."""
    program = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert not re.search(r"\bfor \w+ in [\w.]*entrypoint\b|entrypoint\.receive", program)


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
