"""The tables of budgets in docs/security.md match the code, and are complete."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from aqueduct.ingest.settings import IngestSettings
from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.ipc.transports.tcp import TcpLimits
from aqueduct.protocol.config import Config, Limits
from aqueduct.transport.settings import QuicSettings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"
ROW = re.compile(r"^\| `([\w.]+)` \| ([^|]+?) \| ([^|]+?) \|$", re.M)
UNITS = {"": 1, "KiB": 1024, "MiB": 1024 * 1024, "GiB": 1024**3, "s": 1, "MB": 1_000_000}
CLASSES = (Limits, Config, QuicSettings, IngestSettings, IpcSettings, TcpLimits)


def rows() -> dict[str, str]:
    """Return the default of each limit, as the page states it."""
    return {name: default for name, default, _ in ROW.findall(PAGE.read_text())}


def stated(default: str) -> object:
    """Parse a default."""
    if default == "None":
        return None
    number, _, unit = default.partition(" ")
    if number == "mode":
        return int(unit, 8)
    if "**" in number:
        base, _, exponent = number.partition("**")
        return int(base) ** int(exponent)
    return float(number.replace(",", "")) * UNITS[unit]


def actual(name: str) -> Any:
    """Return the value in the code: a constant of a module, or the default of a field."""
    *path, last = name.split(".")
    if path[-1][0].isupper():
        module = importlib.import_module("aqueduct." + ".".join(path[:-1]))
        return getattr(getattr(module, path[-1])(), last)
    return getattr(importlib.import_module("aqueduct." + ".".join(path)), last)


def test_the_page_has_budgets() -> None:
    assert len(rows()) > 50


@pytest.mark.parametrize(("name", "default"), rows().items(), ids=list(rows()))
def test_the_page_states_the_default_of_a_limit(name: str, default: str) -> None:
    assert actual(name) == stated(default), f"docs/security.md is wrong about {name}"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_limit_of_the_code_is_on_the_page(kind: Any) -> None:
    prefix = f"{kind.__module__.removeprefix('aqueduct.')}.{kind.__name__}"
    limits = [
        field.name
        for field in dataclasses.fields(kind)
        if field.name.startswith(("max_", "min_")) and field.name not in ("max_datagram",)
    ]
    missing = [name for name in limits if f"{prefix}.{name}" not in rows()]
    if kind is QuicSettings:
        missing = [name for name in missing if name != "max_packet"]
    assert not missing, f"give docs/security.md a row for {', '.join(missing)} of {prefix}"
