"""Write docs/settings.md from the declarations of all settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aqueduct import Delivery, Limits, QuicSettings, ipc
from aqueduct.ingest import IngestSettings
from aqueduct.ipc.transports.tcp import TcpLimits
from aqueduct.protocol.config import Config
from aqueduct.settings import settings_of, shown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

INTRODUCTION = """# Settings

```python
aqueduct.serve("0.0.0.0:4433", tls=tls, limits=aqueduct.Limits(max_channels=1_024))
```

Settings are frozen objects. A constructor raises `SettingError` for an invalid value; the error
names the setting, the value and the allowed values. [security.md](security.md) explains what each
budget protects against.

`python tools/settings.py` writes this page from the declarations in the code; a test fails if they
differ.

"""

SECTIONS: tuple[tuple[str, str, type[Any]], ...] = (
    (
        "Limits of a connection: `aqueduct.Limits`",
        "`connect(..., limits=Limits(...))` and `serve(..., limits=Limits(...))`. Each side states "
        "its limits to the peer, which obeys them.",
        Limits,
    ),
    (
        "Delivery of messages: `aqueduct.Delivery`",
        "`connect(..., delivery=Delivery(...))` and `serve(..., delivery=Delivery(...))`, also for "
        "`memory://`. Each side has its own.",
        Delivery,
    ),
    (
        "QUIC: `aqueduct.QuicSettings`",
        "`connect(..., options=QuicSettings(...))` and `serve(..., options=QuicSettings(...))`. "
        "TCP uses all but `max_packet`, `handshakes_before_retry` and `max_resets`.",
        QuicSettings,
    ),
    (
        "ScalableIPC: `aqueduct.ipc.IpcSettings`",
        "`ipc.Endpoint(..., config=ipc.IpcSettings(...))`. These are not negotiated; endpoints "
        "that exchange messages should have the same timeouts.",
        ipc.IpcSettings,
    ),
    (
        "Ingest: `aqueduct.ingest.IngestSettings`",
        "`ingest.IngestServer(..., limits=IngestSettings(...))`, and options of `aqueduct ingest`.",
        IngestSettings,
    ),
    (
        "TLS connections of ScalableIPC: `aqueduct.ipc.transports.tcp.TcpLimits`",
        "Applications cannot set these.",
        TcpLimits,
    ),
    (
        "Inside a connection: `aqueduct.protocol.config.Config`",
        "Applications cannot set these; the protocol and the budgets depend on them.",
        Config,
    ),
)


def table(kind: type[Any]) -> list[str]:
    """Return the settings of a class as rows of Markdown."""
    defaults = kind()
    rows = ["| setting | default | allowed | reason |", "|---|---|---|---|"]
    for name, setting in settings_of(kind):
        default = shown(getattr(defaults, name), setting.unit)
        allowed = setting.allowed().replace("**", "\\*\\*")
        rows.append(f"| `{name}` | {default} | {allowed} | {setting.reason} |")
    return rows


def page() -> str:
    """Return the whole page."""
    parts = [
        "\n".join([f"## {title}", "", use, "", *table(kind), ""]) for title, use, kind in SECTIONS
    ]
    return INTRODUCTION + "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
