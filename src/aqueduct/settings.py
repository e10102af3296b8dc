"""Declares, validates and explains settings.

A settings class is a frozen dataclass. Each field has its default and, as metadata, a `Setting`:
the type, the unit, the allowed values and the reason::

    @dataclass(frozen=True)
    class ServerSettings:
        '''How a server behaves.'''

        idle_timeout: float = field(
            default=30.0, metadata=seconds("A connection ends after this much silence.", above=0)
        )
        max_clients: int = field(
            default=100, metadata=whole("clients", "Each one takes 80 KB.", least=1)
        )


    declare(ServerSettings)

`declare` makes the constructor validate all values before the object exists, and extends the
documentation of the class by its settings. docs/settings.md is generated from the same
declarations. `declare` is no class decorator, because mypyc compiles a class with an unknown
decorator to an ordinary Python class, with slower attributes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from textwrap import fill
from typing import Any

from aqueduct.errors import SettingError

KIB = 1024
MIB = 1024 * KIB

LONGEST = 1_000_000_000
"""The longest duration in seconds, about 31 years: timers of event loops handle it."""

Bound = int | float | str
"""A number, or the name of another setting of the same class."""

_KEY = "setting"
_WIDTH = 96
"""Of lines in the documentation of a class."""


@dataclass(frozen=True)
class Setting:
    """What a setting means, and which values it allows."""

    kind: type
    """``int``, ``float`` or ``bool``; a ``float`` setting also takes an ``int``."""
    unit: str
    reason: str
    least: Bound | None = None
    most: Bound | None = None
    above: Bound | None = None
    """A lower bound that is itself not allowed."""
    none: str = ""
    """What None selects, if None is allowed."""
    zero: str = ""
    """What 0 selects, if 0 selects something that depends on other settings."""

    @property
    def is_relative(self) -> bool:
        """Whether a bound is the value of another setting."""
        return any(isinstance(bound, str) for bound in (self.least, self.most, self.above))

    def allows(self, value: object, others: Mapping[str, Any]) -> bool:
        """Return whether a value is allowed beside the values of the other settings."""
        if value is None:
            return bool(self.none)
        if self.kind is bool:
            return isinstance(value, bool)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind is int and not isinstance(value, int):
            return False
        if self.zero and value == 0:
            return True
        # Written so that NaN, which is neither more nor less than anything, is not allowed.
        return (
            (self.least is None or value >= _limit(self.least, others))
            and (self.above is None or value > _limit(self.above, others))
            and (self.most is None or value <= _limit(self.most, others))
        )

    def allowed(self, others: Mapping[str, Any] | None = None) -> str:
        """Describe the allowed values; with ``others``, also those of settings in bounds."""
        if self.kind is bool:
            return "True or False"
        least, above, most = (
            None if bound is None else _shown_bound(bound, others)
            for bound in (self.least, self.above, self.most)
        )
        if self.kind is float:
            text = "seconds" if above is None else f"seconds, more than {above}"
            if least is not None:
                text += f", {least} or more"
            if most is not None:
                text += f" and at most {most}"
        else:
            text = "a whole number"
            if most is not None:
                text += f" from {least} to {most}"
            elif least is not None:
                text += f", {least} or more"
            text += f" ({self.unit})"
        if self.zero:
            text += f", or 0 for {self.zero}"
        if self.none:
            text += f", or None for {self.none}"
        return text


def whole(
    unit: str,
    reason: str,
    *,
    least: Bound = 0,
    most: Bound | None = None,
    none: str = "",
    zero: str = "",
) -> dict[str, Setting]:
    """Return the metadata of a field that is a whole number of some unit."""
    return {_KEY: Setting(int, unit, reason, least, most, none=none, zero=zero)}


def seconds(
    reason: str,
    *,
    least: Bound | None = None,
    above: Bound | None = None,
    most: Bound = LONGEST,
    none: str = "",
) -> dict[str, Setting]:
    """Return the metadata of a field that is a duration; 0 or more unless bounds are given."""
    if least is None and above is None:
        least = 0
    return {_KEY: Setting(float, "seconds", reason, least, most, above, none=none)}


def switch(reason: str) -> dict[str, Setting]:
    """Return the metadata of a field that is True or False."""
    return {_KEY: Setting(bool, "", reason)}


def declare(kind: Any, derive: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Have a dataclass validate its settings, and explain them in its documentation.

    ``derive`` replaces values of 0 that select a value by other settings; it is called with all
    values of a new object, after they were validated. Constructors raise `SettingError`.
    """
    initialise = kind.__init__
    defaults = {
        name: one.default
        for name, one in list(inspect.signature(initialise).parameters.items())[1:]
    }
    names = tuple(defaults)
    declared = dict(settings_of(kind))
    # A setting that is a bound of others is checked before them.
    checked = sorted(declared.items(), key=lambda item: item[1].is_relative)
    valid = {name: defaults[name] for name, one in checked if not one.is_relative}

    @wraps(initialise)
    def validated(self: object, *given: object, **named: object) -> None:
        values = {**defaults, **dict(zip(names, given, strict=False)), **named}
        if (
            len(values) > len(names)
            or len(given) > len(names)
            or not named.keys().isdisjoint(names[: len(given)])
        ):
            initialise(self, *given, **named)  # raises the usual TypeError
        for name, setting in checked:
            if name in valid and values[name] is valid[name]:
                continue  # nearly all values are defaults
            if not setting.allows(values[name], values):
                allowed = setting.allowed(values)
                raise SettingError(
                    f"{kind.__name__}({name}={values[name]!r}): give {allowed}",
                    setting=name,
                    allowed=allowed,
                )
        if derive is not None:
            derive(values)
        initialise(self, **values)

    validated.unchecked = initialise  # type: ignore[attr-defined]
    kind.__init__ = validated
    example = kind()
    lines = [
        fill(
            f"{name} = {shown(getattr(example, name), one.unit)}: {one.reason}",
            width=_WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
        )
        for name, one in declared.items()
    ]
    kind.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__ or ""), "", "Settings:", *lines])


def unchecked(kind: Any, values: Mapping[str, Any]) -> Any:
    """Make an object from values that are not this side's settings, such as a peer's limits."""
    made = kind.__new__(kind)
    kind.__init__.unchecked(made, **values)
    return made


def settings_of(kind: type[Any]) -> Iterator[tuple[str, Setting]]:
    """Yield the name and the declaration of each setting of a class."""
    for field in fields(kind):
        if _KEY in field.metadata:
            yield field.name, field.metadata[_KEY]


def shown(value: object, unit: str) -> str:
    """Format a value of a setting with its unit."""
    if value is None or isinstance(value, bool):
        return str(value)
    assert isinstance(value, int | float)
    if unit == "bytes" and value:
        for size, name in ((MIB, "MiB"), (KIB, "KiB")):
            if value % size == 0:
                return f"{int(value) // size:,} {name}"
    return f"{_number(value)} s" if unit == "seconds" else _number(value)


def check_type(
    name: str, value: object, kind: type, how: str, *, is_required: bool = False
) -> None:
    """Raise `TypeError` if an argument is not of a type; ``how`` says what makes one.

    An argument that is not required may be None.
    """
    if (is_required or value is not None) and not isinstance(value, kind):
        raise TypeError(f"{name} is what {how} returns, not {value!r}")


def _limit(bound: Bound, values: Mapping[str, Any]) -> Any:
    return values[bound] if isinstance(bound, str) else bound


def _shown_bound(bound: Bound, values: Mapping[str, Any] | None) -> str:
    if not isinstance(bound, str):
        return _number(bound)
    return bound if values is None else f"{bound} ({_number(values[bound])})"


def _number(value: Any) -> str:
    """Format a number; limits of integer types are powers of two less one."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return repr(value)
    if isinstance(value, int) and value >= 2**31 - 1 and value & (value + 1) == 0:
        return f"2**{value.bit_length()} - 1"
    return f"{int(value):,}" if value == int(value) else str(value)
