"""The examples in the README and the guides print what the text promises."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def examples_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


EXAMPLES = examples_of("README.md")


def run(example: str) -> str:
    """Run an example in its own process, as if it were pasted."""
    command = [sys.executable, "-W", "error", "-c", example]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_first_example_prints_the_sum_in_twenty_lines() -> None:
    assert run(EXAMPLES[0]) == "45\n"
    assert len([line for line in EXAMPLES[0].splitlines() if line.strip()]) <= 20


def test_the_readme_says_how_to_install_the_package_and_what_that_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (install,) = re.findall(r"\n## Install\n(.*?)\n## ", readme, re.DOTALL)
    assert f"```\npip install {project['name']}\n```" in install
    assert "The package is imported as `aqueduct`" in install
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in install
    systems = [one for one in project["classifiers"] if one.startswith("Operating System")]
    assert len(systems) == 2
    assert "on Linux or macOS" in install
    extras = re.findall(r"\[(\w+)\]", install)
    assert sorted(extras) == sorted(project["optional-dependencies"])


def test_a_request_that_is_cancelled_fails_its_caller_and_no_other() -> None:
    more = """
async def give_up():
    async with aqueduct.serve("127.0.0.1:0", Sum, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.serve(handle))
        async with aqueduct.connect(server.address, Sum, trust=aqueduct.dev_trust()) as client:
            for end in ("cancel", "finish"):
                tx, rx = aqueduct.channel(int)
                calling = asyncio.create_task(client.entrypoint.call(Sum(rx)))
                await tx.send(7)
                getattr(tx, end)()
                try:
                    print(await calling)
                except aqueduct.ChannelCancelled:
                    print("cancelled")
        serving.cancel()

asyncio.run(give_up())
"""
    assert run(EXAMPLES[0] + more) == "45\ncancelled\n7\n"


def test_the_example_of_the_test_kit_prints_the_squares() -> None:
    assert run(EXAMPLES[1]) == "[b'0', b'1', b'4', b'9', b'16']\n"


def test_the_first_example_of_the_ipc_guide_runs() -> None:
    assert run(examples_of("docs/ipc.md")[0]) == "b'hello' True\n"


def test_the_examples_of_the_page_on_observing_run() -> None:
    metrics, spans = examples_of("docs/observing.md")
    assert run(metrics) == 'aqueduct_messages_received_total{side="server"} 1\n'
    assert run(spans) == "span aqueduct client\naqueduct.close_code 0\nspan ended\n"


def test_the_first_example_of_the_ingest_guide_runs() -> None:
    assert run(examples_of("docs/ingest.md")[0]) == "Stored(partition=0, offset=0)\n[b'21.5']\n"
