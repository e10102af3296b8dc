"""The public API: listed, documented, and reviewed."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import subprocess
import sys
from enum import Enum
from types import ModuleType
from typing import Any, get_type_hints

import pytest

import aqueduct
from aqueduct import blocking, codec, errors, ingest, ipc, spark, testing
from aqueduct.observe import trace
from tests import public_api

MODULES = [aqueduct, blocking, codec, errors, ingest, ipc, spark, testing, trace]
NAMES = [
    pytest.param(module, name, id=f"{module.__name__}.{name}")
    for module in MODULES
    for name in module.__all__
]
VALUES = {"__version__", "DELIVERED", "LOST"}
"""Names of constants, which need no docstring."""


def public_members(kind: type[Any]) -> list[tuple[str, Any]]:
    """Return the public methods and properties that a class defines."""
    return [
        (name, member)
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod))
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_exported_names_are_sorted_and_unique(module: ModuleType) -> None:
    names = module.__all__
    assert len(set(names)) == len(names)
    groups = [name.isupper() for name in names], [name[0].isupper() for name in names]
    assert all(list(group) == sorted(group, reverse=True) for group in groups)


@pytest.mark.parametrize("module", [aqueduct, blocking], ids=lambda module: module.__name__)
def test_every_visible_name_is_exported(module: ModuleType) -> None:
    """Names imported for internal use begin with an underscore, or are modules."""
    seen = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert seen <= set(module.__all__)


def test_the_public_api_matches_the_reviewed_list() -> None:
    reviewed = public_api.REVIEWED.read_text().splitlines()
    changes = [
        line
        for line in difflib.unified_diff(reviewed, public_api.listing(), lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    assert changes == [], (
        "the public API differs from tests/public_api.txt: hide what users do not need behind an "
        "underscore; if the change is meant, run `python -m tests.public_api`, and have the diff "
        "of the list reviewed"
    )


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_name_exists_and_has_a_docstring(module: ModuleType, name: str) -> None:
    value = getattr(module, name)
    if name in VALUES:
        return
    if isinstance(value, type) or inspect.isroutine(value) or isinstance(value, ModuleType):
        text = inspect.getdoc(value)
        assert text, f"{name} has no docstring"
        assert text[0].isupper() or text[0] in "`\"'"


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_public_method_has_a_docstring(module: ModuleType, name: str) -> None:
    value = getattr(module, name)
    explained = ("aqueduct.api", "aqueduct.codec", "aqueduct.ingest", "aqueduct.runtime")
    if not isinstance(value, type) or not value.__module__.startswith(explained):
        return
    missing = [member for member, function in public_members(value) if not inspect.getdoc(function)]
    assert missing == []


def test_the_blocking_twin_has_all_methods_of_the_original() -> None:
    internal = {"incoming", "forked"}
    internal |= {"on_headers", "on_end", "turned", "expect", "fail", "leave", "lost"}
    internal |= {"connections"}  # each belongs to the thread that accepted it
    for name in blocking.__all__:
        twin, original = getattr(blocking, name), getattr(aqueduct, name)
        if not isinstance(twin, type) or issubclass(twin, tuple) or name == "Receipt":
            continue
        wanted = {member for member, _ in public_members(original)}
        has = {member for kind in twin.__mro__ for member in vars(kind)}
        assert wanted - has - internal == set(), name


def test_every_error_is_exported_and_in_the_drawing() -> None:
    drawing = errors.__doc__ or ""
    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, Enum):
            continue
        assert name in drawing
        assert getattr(aqueduct, name) is kind


def test_typed_options_match_the_keywords_of_functions() -> None:
    """The `TypedDict` that type checkers see has the keywords that the function takes."""
    client = importlib.import_module("aqueduct.api.client")
    server = importlib.import_module("aqueduct.api.server")
    channels = importlib.import_module("aqueduct.api.channels")
    for function, options in (
        (aqueduct.connect, client.ConnectOptions),
        (blocking.connect, client.ConnectOptions),
        (aqueduct.serve, server.ServeOptions),
        (blocking.serve, server.ServeOptions),
        (aqueduct.channel, channels.ChannelOptions),
        (blocking.channel, channels.ChannelOptions),
        (aqueduct.oneshot, channels.OneshotOptions),
        (blocking.oneshot, channels.OneshotOptions),
    ):
        keywords = {
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        assert keywords == set(options.__annotations__), function


def test_settings_are_documented_field_by_field() -> None:
    for kind in (aqueduct.Limits, aqueduct.QuicSettings, ingest.IngestSettings):
        text = inspect.getdoc(kind) or ""
        for field in get_type_hints(kind):
            assert re.search(rf"^    {field} = .*: [A-Z]", text, re.M), f"{kind.__name__}.{field}"


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "module", ["aqueduct", "aqueduct.blocking", "aqueduct.ipc", "aqueduct.testing"]
)
def test_modules_without_storage_do_not_import_pyarrow(module: str) -> None:
    found = run(
        f"import sys, {module}\n"
        "print([name for name in sys.modules if name.startswith(('pyarrow', 'aqueduct.ingest'))])"
    )
    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_the_command_line_imports_ingest_only_when_it_is_used() -> None:
    found = run(
        "import sys, aqueduct.cli.main\n"
        "print([name for name in sys.modules if name.startswith(('pyarrow', 'aqueduct.ingest'))])"
    )
    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_ingest_without_pyarrow_raises_with_what_to_install() -> None:
    found = run(
        "import sys; sys.modules['pyarrow'] = None\n"
        "try:\n    from aqueduct import ingest\n"
        "except ImportError as error:\n    print(error, error.name)"
    )
    sentence = "aqueduct.ingest needs pyarrow: pip install 'aqueduct-channels[ingest]' pyarrow\n"
    assert (found.stdout, found.stderr) == (sentence, "")
