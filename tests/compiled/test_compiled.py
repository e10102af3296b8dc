"""The compiled build behaves like the sources: settings, enums, documentation, commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "compiled-quick"
TESTS = (
    "tests/test_budgets.py",
    "tests/test_documentation.py",
    "tests/test_errors.py",
    "tests/test_exports.py",
    "tests/test_settings.py",
    "tests/api/test_attachments.py",
    "tests/api/test_handles.py",
    "tests/api/test_modes.py",
    "tests/runtime/test_receive_port.py",
    "tests/runtime/test_send_port.py",
    "tests/transport/test_contract.py",
    "tests/cli/test_help.py",
    "tests/cli/test_ipc.py",
    "tests/cli/test_ping.py",
    "tests/cli/test_send_and_listen.py",
    "tests/ipc/core/test_sending.py::test_a_message_too_long_for_the_length_field_is_refused",
    "tests/ipc/core/test_settings.py",
    "tests/protocol/test_config.py",
    "tests/protocol/test_events.py",
    "tests/wire/test_frames.py",
    "tests/sim/test_seeds.py",
)
INTERPRETED = """
import dataclasses, importlib, pathlib, types
import aqueduct
root = pathlib.Path(aqueduct.__file__).parent
for path in [*root.glob("wire/*.so"), *root.glob("protocol/*.so")]:
    name = path.name.split(".")[0]
    module = importlib.import_module(f"aqueduct.{path.parent.name}.{name}")
    for each in vars(module).values():
        own = getattr(each, "__module__", "") == module.__name__
        if own and dataclasses.is_dataclass(each) and dataclasses.fields(each):
            if isinstance(each.__init__, types.FunctionType):
                print(each.__name__)
"""
"""Prints the dataclasses whose constructors are not compiled."""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**own, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_compiled_build_behaves_like_the_sources() -> None:
    """The first run compiles; later runs compile again only if the core has changed."""
    built = run(sys.executable, "tools/compile.py", "--quick")
    assert built.returncode == 0, built.stderr
    where = run(
        sys.executable,
        "-c",
        "import aqueduct.protocol.config as module; print(module.__file__)",
        PYTHONPATH=str(BUILD),
    )
    assert re.match(rf"{BUILD}/aqueduct/protocol/config\..*so$", where.stdout.strip())
    interpreted = run(sys.executable, "-c", INTERPRETED, PYTHONPATH=str(BUILD))
    # Settings have defaults with reasons, and are made once per connection.
    assert set(interpreted.stdout.split()) <= {"Config", "Delivery", "Limits"}, interpreted
    ran = run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS),
        PYTHONPATH=str(BUILD),
    )
    assert ran.returncode == 0, ran.stdout
