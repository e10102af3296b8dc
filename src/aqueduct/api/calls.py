"""Calls: a request that carries the sender of its reply."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from aqueduct.codec import ChannelHalf


def reply_field(kind: type[Any], fields: dict[str, Any]) -> tuple[str, Any]:
    """Return the name and message type of the one `Sender` field that ``fields`` leaves out."""
    open_fields = [field for field in sender_fields(cast(Hashable, kind)) if field[0] not in fields]
    if len(open_fields) != 1:
        raise TypeError(
            f"call() needs a type with exactly one unfilled Sender field; "
            f"{kind.__name__} has {len(open_fields)}"
        )
    return open_fields[0]


@lru_cache(maxsize=1024)
def sender_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names and message types of the `Sender` fields of a message type."""
    found = []
    for name, hint in get_type_hints(kind).items():
        half = get_origin(hint) or hint
        if isinstance(half, type) and issubclass(half, ChannelHalf) and half._sends:
            arguments = get_args(hint)
            found.append((name, arguments[0] if arguments else bytes))
    return tuple(found)
