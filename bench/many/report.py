"""The result of a run: three tables as Markdown, and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.many.crowd import Result
from bench.many.picture import Panel, picture
from bench.network.report import number, table

Rows = Mapping[str, str]
"""The heading of a column, by the name of its figure."""

CONNECTIONS: Rows = {
    "connect_seconds": "to open the new ones, s",
    "connect_processor": "server, ms each",
    "memory": "memory each, KB",
    "idle": "idle, % of a core",
    "trip_p50": "round trip p50, ms",
    "trip_p99": "p99, ms",
    "trip_rate": "trips/s",
    "trip_processor": "server, µs/trip",
}
SUBSCRIBERS: Rows = {
    "rate": "messages/s in total",
    "processor": "server, µs/message",
    "delay": "delay, ms",
    "slowest": "slowest of median",
    "single_median": "one message: median, ms",
    "single_slowest": "slowest, ms",
    "single_processor": "server, µs/message",
}
CHANNELS: Rows = {
    "rate": "messages/s",
    "sender": "sender, µs/message",
    "receiver": "receiver, µs/message",
    "slowest": "slowest of median",
    "fastest": "fastest of median",
}
PARTS = {
    "connections": CONNECTIONS,
    "subscribers": SUBSCRIBERS,
    "channels": CHANNELS,
}


@dataclass
class Run:
    """The figures of a run."""

    about: list[str]
    """The machine, the versions and the build."""
    found: dict[str, dict[str, dict[int, Result]]] = field(default_factory=dict)
    """By part, transport and number."""
    failures: list[str] = field(default_factory=list)

    def add(self, part: str, transport: str, count: int, result: Result) -> None:
        """Add what was measured with a number of connections, subscribers or channels."""
        at = self.found.setdefault(part, {}).setdefault(transport, {})
        at.setdefault(count, {}).update(result)


def as_markdown(run: Run) -> str:
    """Return the tables and notes."""
    parts = [part_table(part, run.found[part]) for part in PARTS if part in run.found]
    notes = [*run.about, *(f"Failed: {failure}" for failure in run.failures)]
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in notes)]) + "\n"


def part_table(part: str, found: Mapping[str, Mapping[int, Result]]) -> str:
    """Return the table of one part."""
    rows = PARTS[part]
    lines: list[Sequence[str]] = [
        [part, "", *rows.values()],
        ["---:", "---", *["---:"] * len(rows)],
    ]
    for transport, by_count in found.items():
        for count, result in by_count.items():
            cells = [number(result.get(name)) for name in rows]
            lines.append([f"{count:,}", transport.upper(), *cells])
    return table(lines)


def as_picture(run: Run) -> str:
    """Return the curves as an SVG file."""
    wanted = (
        ("connections", "trip_processor", "server's CPU time per round trip, µs"),
        ("subscribers", "rate", "1 publisher: messages/s in total"),
        ("channels", "rate", "channels of one connection: messages/s"),
    )
    panels = [
        Panel(
            title,
            part,
            {
                transport.upper(): [(count, result[name]) for count, result in by_count.items()]
                for transport, by_count in run.found[part].items()
            },
        )
        for part, name, title in wanted
        if part in run.found
    ]
    return picture("Many connections, subscribers and channels", panels)
