"""Options as somebody gave them: text, found by name, and what all that speak to servers share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from aqueduct.spark.errors import WrongOption

SERVER_NAMES = ("trustCa", "trustPin", "trustDevelopment", "token")
"""Options that say how to speak to servers."""
ERROR, RESTART, CONTINUE = REPLACED = ("error", "restart", "continue")
"""Values of option onTopicReplaced: fail; read all rows that may be new; keep the offsets."""
_TRUST = SERVER_NAMES[:3]
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:,/]+):([0-9]{1,5})")


@dataclass(frozen=True)
class ServerOptions:
    """Which servers, whom to believe that they are, and what to show them."""

    servers: tuple[str, ...]
    trust_ca: str | None
    trust_pin: str | None
    trust_development: bool
    token: str | None = field(repr=False)


def is_topic(name: str) -> bool:
    """Whether a topic can have this name."""
    return _TOPIC.fullmatch(name) is not None


_KAFKA = {
    "kafka.bootstrap.servers": "servers",
    "kafka.group.id": "",
    "groupidprefix": "",
    "kafka.security.protocol": "trustCa",
    "kafka.ssl.truststore.location": "trustCa",
}
"""What somebody who comes from Kafka tries first, and what does the same."""


def _meant(name: str, names: Sequence[str]) -> str:
    """What to give instead, if that can be told."""
    if name in _KAFKA:
        same = _KAFKA[name]
        return f", which is {same} here" if same in names else ", and none is needed"
    lower = {each.lower(): each for each in names}
    close = get_close_matches(name, lower, 1, 0.8)
    return f" (did you mean {lower[close[0]]}?)" if close else ""


class Given:
    """Options as text, found by name however it is written."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def check_names(self, names: tuple[str, ...], ignored: tuple[str, ...] = ()) -> None:
        """Raise for an option that is none of these; some others are for Spark itself."""
        known = {name.lower() for name in (*names, *ignored)}
        for name in sorted(self._given):
            if name not in known:
                raise WrongOption(
                    f"there is no option {name!r}{_meant(name, names)}; options: {', '.join(names)}"
                )

    def text(self, name: str) -> str | None:
        """The value of an option; None if it was not given."""
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise WrongOption(f"option {name} is empty; give a value, or leave it out")
        return value

    def one_of(self, one: str, other: str, what: str) -> None:
        """Raise unless exactly one of two was given."""
        given = [name for name in (one, other) if self.text(name) is not None]
        if len(given) != 1:
            count = "both are given" if given else "neither is given"
            raise WrongOption(f"options {one} and {other} say {what}: {count}, and one is needed")

    def exclude(self, names: tuple[str, ...]) -> None:
        """Raise if more than one of these was given."""
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise WrongOption(f"options {' and '.join(given)} exclude each other; give one of them")

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        """Raise if one of these was given."""
        for name in names:
            if self.text(name) is not None:
                raise WrongOption(f"option {name} {why}")

    def flag(self, name: str, default: bool) -> bool:
        """Yes or no."""
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise WrongOption(f"option {name} is true or false, not {value!r}")
        return value.strip().lower() == "true"

    def choice(self, name: str, words: Sequence[str], default: str) -> str:
        """Return the value of an option that must be one of ``words``."""
        value = self.text(name)
        word = default if value is None else value.strip().lower()
        if word not in words:
            raise WrongOption(f"option {name} must be one of {', '.join(words)}, not {value!r}")
        return word

    def number(self, name: str, least: int, most: int = 2**63 - 1, *, what: str = "") -> int | None:
        """A whole number within bounds."""
        value = self.text(name)
        if value is None:
            return None
        digits = value.strip()
        if not digits.isascii() or not digits.isdecimal() or not least <= int(digits) <= most:
            upper = "" if most == 2**63 - 1 else f" to {most}"
            raise WrongOption(
                f"option {name} is {what}a whole number from {least}{upper}, not {value!r}"
            )
        return int(digits)

    def listed(self, name: str) -> tuple[str, ...]:
        """Entries between commas, none of them twice."""
        value = self.text(name)
        if value is None:
            return ()
        entries = tuple(entry.strip() for entry in value.split(","))
        if "" in entries or len(set(entries)) != len(entries):
            raise WrongOption(f"option {name}: {value!r} has an empty or a repeated entry")
        return entries

    def topics(self, name: str) -> tuple[str, ...]:
        """Names of topics."""
        topics = self.listed(name)
        for topic in topics:
            if not is_topic(topic):
                raise WrongOption(
                    f"option {name}: {topic!r} cannot be the name of a topic; take up to 100 "
                    "letters, digits, dots, dashes and underscores, a letter or digit first"
                )
        return topics

    def server_options(self) -> ServerOptions:
        """What is said about servers."""
        self.exclude(_TRUST)
        servers = self.listed("servers")
        for server in servers:
            found = _SERVER.fullmatch(server)
            if not found or not 1 <= int(found[2]) <= 65_535:
                raise WrongOption(
                    f"option servers: {server!r} is not host:port; an ingest server listens on "
                    "port 4434 unless told otherwise"
                )
        return ServerOptions(
            servers=servers,
            trust_ca=self.text("trustCa"),
            trust_pin=self.text("trustPin"),
            trust_development=self.flag("trustDevelopment", False),
            token=self.text("token"),
        )
