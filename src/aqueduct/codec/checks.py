"""Checks of a value against the type of a channel, before it is sent."""

from __future__ import annotations

import dataclasses
import datetime
import types
import uuid
from collections.abc import Collection, Hashable, Mapping
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from aqueduct.codec.base import ChannelHalf, name_of
from aqueduct.errors import WrongType

_SCALARS: dict[type[Any], tuple[type[Any], ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    bytes: (bytes, bytearray, memoryview),
    bytearray: (bytes, bytearray, memoryview),
    memoryview: (bytes, bytearray, memoryview),
    type(None): (type(None),),
}
_SEQUENCES = (list, tuple, set, frozenset)
_PLAIN = (
    msgspec.Struct,
    Enum,
    datetime.date,  # and so datetime
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    Decimal,
)
_NOT_A_BASE = frozenset({bool, datetime.datetime})
"""Classes whose base is another type of messages: a bool is an int for Python alone."""


class TypeCheck:
    """Finds values that the receiver of a channel could not decode, by their class alone.

    It looks at the value and at the channel halves in its fields, but no deeper. A type of which it
    does not know the classes, such as `Any` or a `Protocol`, accepts everything.
    """

    __slots__ = ("_classes", "_directions", "_kind", "_takes_all", "known")

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._classes: list[type[Any]] = []
        self._directions: list[bool] = []
        """The directions of the halves that are values of this type."""
        self._takes_all = False
        self._add(kind)
        self.known: set[type[Any]] = set()
        """Classes whose instances are values of this type. For a value of another class, a codec
        calls `check`."""

    def check(self, value: Any) -> None:
        """Raise `WrongType` if the value is not of the type; remember its class if all are."""
        found = type(value)
        if found in self.known:
            return
        if isinstance(value, ChannelHalf) and not self._takes_all:
            if value._sends not in self._directions:
                raise self._error(value)
            return
        if not self._takes_all and (
            not isinstance(value, tuple(self._classes))
            or (found in _NOT_A_BASE and found not in self._classes)
        ):
            raise self._error(value)
        halves = _half_fields(cast("Hashable", found))
        for name, directions, is_optional in halves:
            half = getattr(value, name, None)
            fits = half._sends in directions if isinstance(half, ChannelHalf) else is_optional
            if not fits:
                wanted = " or ".join("a Sender" if one else "a Receiver" for one in directions)
                raise WrongType(f"{found.__name__}.{name} takes {wanted}, not {half!r}")
        if not halves:
            self.known.add(found)

    def _error(self, value: Any) -> WrongType:
        name = "None" if value is None else name_of(type(value))
        article = "" if value is None else "an " if name[0] in "AEIOUaeiou" else "a "
        return WrongType(f"a channel of {name_of(self._kind)} cannot send {article}{name}")

    def _add(self, kind: Any) -> None:
        """Add the classes of a type."""
        kinds = [kind]
        while kinds:
            kind = kinds.pop()
            origin = get_origin(kind) or kind
            if origin is Annotated:
                kinds.append(get_args(kind)[0])
            elif origin is Union or origin is types.UnionType:
                kinds += get_args(kind)
            elif isinstance(origin, NewType):
                kinds.append(origin.__supertype__)
            elif origin is None:
                self._classes.append(type(None))
            elif origin is Literal:
                self._classes += [type(value) for value in get_args(kind)]
            elif not isinstance(origin, type) or origin is object or origin is Any:
                self._takes_all = True
            elif issubclass(origin, ChannelHalf):
                self._directions.append(origin._sends)
            elif origin in _SCALARS:
                self._classes += _SCALARS[origin]
            elif is_typeddict(origin) or issubclass(origin, Mapping):
                self._classes.append(Mapping)
            elif issubclass(origin, _PLAIN) or dataclasses.is_dataclass(origin):
                self._classes.append(origin)
            elif issubclass(origin, tuple) and hasattr(origin, "_fields"):
                self._classes += (tuple, list)
            elif issubclass(origin, Collection):
                self._classes += _SEQUENCES
            else:
                self._takes_all = True


def check_for(kind: Any) -> TypeCheck:
    """Return the check of a type."""
    try:
        return _checks(kind)
    except TypeError:  # Annotated with a dict has no hash
        return TypeCheck(kind)


@lru_cache(maxsize=1024)
def _checks(kind: Hashable) -> TypeCheck:
    return TypeCheck(kind)


@lru_cache(maxsize=1024)
def _half_fields(kind: type[Any]) -> tuple[tuple[str, tuple[bool, ...], bool], ...]:
    """Return the fields of a class that hold halves: name, directions, whether others may be."""
    hints: dict[str, Any] = {}
    if issubclass(kind, msgspec.Struct):
        hints = {field.name: field.type for field in msgspec.structs.fields(kind)}
    elif dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
    found = []
    for name, hint in hints.items():
        is_union = get_origin(hint) is Union or get_origin(hint) is types.UnionType
        members = [get_origin(one) or one for one in (get_args(hint) if is_union else (hint,))]
        halves = [one for one in members if isinstance(one, type) and issubclass(one, ChannelHalf)]
        if halves:
            directions = tuple(half._sends for half in halves)
            found.append((name, directions, len(halves) < len(members)))
    return tuple(found)
