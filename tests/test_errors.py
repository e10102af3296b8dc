"""The hierarchy of errors is drawn completely in `aqueduct.errors`, and exported."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
import re
from types import ModuleType

import pytest

import aqueduct
from aqueduct import errors
from aqueduct.errors import AqueductError, ConnectError, SendTimeout, TLSError

LINE = re.compile(r"^    ([| ]*)\+- (\w+)", re.M)
INTERNAL = {"Incomplete", "ScopeFault", "StepFault", "ExtraRows", "SpillFault", "PipelineError"}
"""Errors that other code of the package handles, or that only the command line shows."""
PACKAGES = ("aqueduct.ingest", "aqueduct.spark", "aqueduct.observe.trace", "aqueduct.testing")


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(aqueduct.__path__, "aqueduct.")
    return [importlib.import_module(one.name) for one in found if "__main__" not in one.name]


def defined() -> dict[str, list[type[BaseException]]]:
    """Return every exception class that the package defines, by name."""
    kinds: dict[str, list[type[BaseException]]] = {}
    for module in modules():
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, BaseException)
                and value.__module__ == module.__name__
            ):
                kinds.setdefault(value.__name__, []).append(value)
    return kinds


def drawn() -> dict[str, str]:
    """Return the parent of each error in the drawing."""
    parents: dict[str, str] = {}
    path = ["AqueductError"]
    for indent, name in LINE.findall(errors.__doc__ or ""):
        depth = (len(indent) + 3) // 4
        del path[depth:]
        assert name not in parents, f"{name} is drawn twice"
        parents[name] = path[-1]
        path.append(name)
    return parents


def test_every_exception_derives_from_aqueduct_error() -> None:
    strays = [
        f"{kind.__module__}.{name}"
        for name, kinds in defined().items()
        for kind in kinds
        if not issubclass(kind, AqueductError)
    ]
    assert strays == []


def test_the_drawing_shows_every_exception_under_one_of_its_bases() -> None:
    kinds, parents = defined(), drawn()
    public = {name for name in kinds if not name.startswith("_")}
    assert set(parents) | {"AqueductError"} == public
    for name, parent in parents.items():
        for kind in kinds[name]:
            assert parent in {base.__name__ for base in kind.__bases__}, name


def test_every_exception_is_exported_by_its_package() -> None:
    missing = []
    for name, kinds in defined().items():
        for kind in kinds:
            package = next((one for one in PACKAGES if kind.__module__.startswith(one)), "aqueduct")
            if name in INTERNAL or name.startswith("_"):
                continue
            if name not in importlib.import_module(package).__all__:
                missing.append(f"{package}.{name}")
    assert missing == []


def test_a_hint_follows_the_message() -> None:
    error = TLSError("no certificate", hint="make one")
    assert (str(error), error.message, error.hint) == (
        "no certificate; make one",
        "no certificate",
        "make one",
    )
    assert error.args == ("no certificate",)


@pytest.mark.parametrize("kind", [AqueductError, ConnectError, SendTimeout])
def test_an_error_without_a_hint_is_its_message(kind: type[AqueductError]) -> None:
    error = kind("no answer")
    assert (str(error), error.message, error.hint) == ("no answer", "no answer", "")


def test_a_hint_survives_copying_and_pickling() -> None:
    error = ConnectError("no answer", hint="start the server")
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert str(same) == "no answer; start the server"
