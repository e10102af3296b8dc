"""What ``help()`` shows: the docstrings of the sources, also where the core is compiled."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pydoc
from pathlib import Path
from typing import Any

import pytest

import aqueduct
from aqueduct import ipc

CORE = ("wire", "protocol", "ipc/core")
SOURCES = Path(aqueduct.__file__).parent
MODULES = {
    f"aqueduct.{path.relative_to(SOURCES).with_suffix('')}".replace("/", "."): path
    for folder in CORE
    for path in sorted((SOURCES / folder).rglob("*.py"))
}


def classes(path: Path) -> dict[str, str]:
    """The docstring of each class in a source file."""
    return {
        node.name: text
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and (text := ast.get_docstring(node))
    }


def test_the_core_is_looked_at() -> None:
    assert sum(len(classes(path)) for path in MODULES.values()) > 50


@pytest.mark.parametrize("name", MODULES)
def test_every_class_of_the_core_has_the_docstring_of_its_source(name: str) -> None:
    module = importlib.import_module(name)
    for kind, text in classes(MODULES[name]).items():
        assert (inspect.getdoc(getattr(module, kind)) or "").startswith(text), kind


@pytest.mark.parametrize("kind", [aqueduct.Mode, aqueduct.Limits, ipc.IpcSettings, ipc.Statistics])
def test_help_shows_what_a_class_is(kind: type[Any]) -> None:
    text = pydoc.plain(pydoc.render_doc(kind))
    assert (inspect.getdoc(kind) or "?").splitlines()[0] in text
    assert "filler" not in text


@pytest.mark.parametrize("name", MODULES)
def test_enums_are_enums(name: str) -> None:
    """Members, values and names are those of the source."""
    module = importlib.import_module(name)
    for node in ast.parse(MODULES[name].read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        kind = getattr(module, node.name)
        is_enum = isinstance(kind, enum.EnumMeta)
        if not is_enum:
            continue
        written = {
            target.id
            for line in node.body
            if isinstance(line, ast.Assign)
            for target in line.targets
            if isinstance(target, ast.Name) and not target.id.startswith("_")
        }
        members: dict[str, Any] = {**kind.__members__}
        assert written == set(members)
        for label, member in members.items():
            assert kind(member.value) is member
            assert (member.name, str(member.value) in repr(member)) == (label, True)
        with pytest.raises(ValueError, match="is not a valid"):
            kind("nothing like it")


def test_a_mode_is_found_by_its_name_and_by_its_value() -> None:
    assert [mode.name for mode in aqueduct.Mode] == ["ORDERED", "UNORDERED", "UNRELIABLE"]
    for mode in aqueduct.Mode:
        assert aqueduct.Mode[mode.name] is mode
        assert aqueduct.Mode(mode.value) is mode
