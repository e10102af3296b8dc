"""The settings mechanism, all classes that use it, and the generated page."""

from __future__ import annotations

import importlib.util
import inspect
import re
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from aqueduct import Limits, QuicSettings, ipc
from aqueduct.errors import AqueductError, SettingError
from aqueduct.ingest import IngestSettings
from aqueduct.ipc.transports.tcp import TcpLimits
from aqueduct.protocol.config import Config
from aqueduct.settings import (
    KIB,
    MIB,
    Setting,
    declare,
    seconds,
    settings_of,
    shown,
    switch,
    unchecked,
    whole,
)

ROOT = Path(__file__).resolve().parent.parent
CLASSES = (Limits, QuicSettings, ipc.IpcSettings, IngestSettings, TcpLimits, Config)
DECLARED = [
    pytest.param(kind, name, setting, id=f"{kind.__module__}.{kind.__name__}.{name}")
    for kind in CLASSES
    for name, setting in settings_of(kind)
]


@dataclass(frozen=True)
class Example:
    """Some settings."""

    timeout: float = field(default=1.0, metadata=seconds("Until then.", above=0, most=60))
    pause: float | None = field(default=None, metadata=seconds("Between two.", none="no pause"))
    size: int = field(default=4 * KIB, metadata=whole("bytes", "Of one.", least=1, most="total"))
    total: int = field(default=MIB, metadata=whole("bytes", "Of all.", least=KIB))
    spare: int = field(default=0, metadata=whole("bytes", "Unused.", least=8, zero="1 KiB"))
    loud: bool = field(default=False, metadata=switch("Whether it is heard."))
    names: tuple[str, ...] = ()


def _derive(values: dict[str, Any]) -> None:
    values["spare"] = values["spare"] or KIB


declare(Example, _derive)


def test_allowed_values_are_kept() -> None:
    made = Example(60, 0.5, size=1, total=KIB, loud=True, names=("a",))
    assert (made.timeout, made.pause, made.size, made.total) == (60, 0.5, 1, KIB)
    assert (made.loud, made.names) == (True, ("a",))
    assert replace(made, size=2).size == 2


def test_a_value_that_depends_on_others_is_derived() -> None:
    assert Example().spare == KIB
    assert Example(spare=9).spare == 9


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"timeout": 0}, "Example(timeout=0): give seconds, more than 0 and at most 60"),
        ({"timeout": 61}, "Example(timeout=61): give seconds, more than 0 and at most 60"),
        ({"timeout": "1"}, "Example(timeout='1'): give seconds, more than 0 and at most 60"),
        ({"timeout": True}, "Example(timeout=True): give seconds, more than 0 and at most 60"),
        ({"timeout": None}, "Example(timeout=None): give seconds, more than 0 and at most 60"),
        (
            {"pause": float("nan")},
            "Example(pause=nan): give seconds, 0 or more and at most 1,000,000,000, "
            "or None for no pause",
        ),
        (
            {"size": 2_000, "total": KIB},
            "Example(size=2000): give a whole number from 1 to total (1,024) (bytes)",
        ),
        (
            {"size": 1.0},
            "Example(size=1.0): give a whole number from 1 to total (1,048,576) (bytes)",
        ),
        (
            {"spare": 7},
            "Example(spare=7): give a whole number, 8 or more (bytes), or 0 for 1 KiB",
        ),
        ({"loud": 1}, "Example(loud=1): give True or False"),
    ],
)
def test_an_error_names_the_setting_the_value_and_the_allowed_values(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingError) as caught:
        Example(**changes)
    assert str(caught.value) == sentence
    assert caught.value.setting in changes
    assert sentence.endswith(f"give {caught.value.allowed}")
    assert isinstance(caught.value, AqueductError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)


def test_an_unknown_name_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unknown"):
        Example(unknown=1)  # type: ignore[call-arg]


def test_settings_of_a_peer_are_not_validated() -> None:
    values = {one.name: getattr(Example(), one.name) for one in fields(Example)}
    made = unchecked(Example, {**values, "size": 0, "spare": 0})
    assert (made.size, made.spare) == (0, 0)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (16 * MIB, "bytes", "16 MiB"),
        (64 * KIB, "bytes", "64 KiB"),
        (1_150, "bytes", "1,150"),
        (0, "bytes", "0"),
        (0.05, "seconds", "0.05 s"),
        (10.0, "seconds", "10 s"),
        (65_536, "channels", "65,536"),
        (2**64 - 1, "channels", "2**64 - 1"),
        (None, "seconds", "None"),
        (False, "", "False"),
    ],
)
def test_values_are_shown_with_their_units(value: object, unit: str, text: str) -> None:
    assert shown(value, unit) == text


# -- every class of settings ----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name", "setting"), DECLARED)
def test_a_setting_has_a_reason_a_unit_and_an_allowed_default(
    kind: type[Any], name: str, setting: Setting
) -> None:
    values = {one.name: getattr(kind(), one.name) for one in fields(kind)}
    assert setting.allows(values[name], values)
    assert setting.unit or setting.kind is bool
    assert re.fullmatch(r"[A-Z].*\.", setting.reason), setting.reason


@pytest.mark.parametrize(("kind", "name", "setting"), DECLARED)
def test_a_setting_rejects_a_string(kind: type[Any], name: str, setting: Setting) -> None:
    with pytest.raises(SettingError, match=rf"{kind.__name__}\({name}='many'\): give "):
        kind(**{name: "many"})


@pytest.mark.parametrize("kind", CLASSES)
def test_every_number_is_declared(kind: type[Any]) -> None:
    plain = {one.name for one in fields(kind)} - {name for name, _ in settings_of(kind)}
    assert plain <= {"limits", "initial_limits"}


@pytest.mark.parametrize("kind", CLASSES)
def test_the_docstring_of_a_class_explains_its_settings(kind: type[Any]) -> None:
    text = " ".join((inspect.getdoc(kind) or "").split())
    assert text[0].isupper()
    for name, setting in settings_of(kind):
        default = shown(getattr(kind(), name), setting.unit)
        assert f" {name} = {default}: {setting.reason}" in text


@pytest.mark.parametrize("kind", CLASSES)
def test_settings_cannot_be_changed(kind: type[Any]) -> None:
    name = fields(kind)[0].name
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(kind(), name, 1)


def test_the_settings_page_matches_the_declarations() -> None:
    """Write it again with ``python tools/settings.py``."""
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "tools" / "settings.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (ROOT / "docs" / "settings.md").read_text() == tool.page()
