"""Builds the package. The core is compiled to C if possible, and is ordinary Python otherwise.

``pip install`` compiles the core if there is a C compiler and Python's headers.

- ``AQUEDUCT_CORE=python`` skips compiling; ``AQUEDUCT_CORE=compiled`` fails if it is impossible.
- ``AQUEDUCT_OPTIMIZE=0`` compiles without optimization, in a fifth of the time, for tests.

An editable installation runs the sources.
"""

import ast
import contextlib
import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

COMPILED = (
    "aqueduct/wire",
    "aqueduct/protocol",
    "aqueduct/ipc/core",
    "aqueduct/transport/quic/bridge.py",
    "aqueduct/transport/quic/room.py",
    "aqueduct/transport/quic/costs.py",
    "aqueduct/transport/liveness.py",
    "aqueduct/transport/stream_credit.py",
    "aqueduct/transport/tcp/engine.py",
    "aqueduct/transport/tcp/records.py",
    "aqueduct/runtime/send_port.py",
    "aqueduct/runtime/receive_port.py",
)
"""The hot path: the pure packages, and the modules between them and the event loop."""
DATACLASSES = ("dataclass(frozen=True, slots=True)", "dataclass(slots=True)")
"""The decorators of classes whose constructors are compiled."""
WORK = Path(__file__).resolve().parent / "build" / "mypyc"


WANTED = os.environ.get("AQUEDUCT_CORE", "")


def main() -> None:
    """Run setuptools, with extensions if the core can be compiled."""
    reason = why_not()
    if reason:
        do_without(reason)
        setup()
    else:
        setup(ext_modules=compiled_modules(), cmdclass={"build_ext": OptionalBuild})


def do_without(reason: object) -> None:
    """Report why the core is not compiled; exit with an error if ``AQUEDUCT_CORE=compiled``."""
    if WANTED == "compiled" and "bdist_wheel" in sys.argv:
        raise SystemExit(f"aqueduct: the core cannot be compiled: {reason}")
    sys.stderr.write(f"aqueduct: the core stays Python: {reason}\n")


def why_not() -> str | None:
    """Return why the core cannot be compiled, or None."""
    if WANTED == "python":
        return "AQUEDUCT_CORE is 'python'"
    if "bdist_wheel" not in sys.argv:
        return "extensions are built for wheels only"
    if importlib.util.find_spec("mypyc") is None:
        return "mypyc, which comes with mypy, is not installed"
    if sys.implementation.name != "cpython":
        return "mypyc supports CPython only"
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"no C compiler was found (looked for {command[0]})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of this Python (Python.h) are not installed"
    return None


def compiled_modules() -> list[Extension]:
    """Return the extensions of all modules but the ``__init__`` files, which only re-export."""
    from mypyc.build import mypycify

    # The mypy settings of the project are for development, and the dependencies of the rest of the
    # package are not installed when a wheel is built.
    settings = [
        *("--config-file=", "--ignore-missing-imports", "--follow-imports=silent"),
        "--no-site-packages",  # the same build, whether or not the dependencies are installed
    ]
    with contextlib.chdir("src"):
        modules = sorted(
            str(path)
            for name in COMPILED
            for path in (Path(name).rglob("*.py") if Path(name).is_dir() else [Path(name)])
            if path.name != "__init__.py"
        )
    copy_sources(modules)
    with contextlib.chdir(WORK / "src"):  # mypyc derives module names from paths
        try:
            extensions = mypycify(
                [*settings, f"--cache-dir={WORK / 'cache'}", *modules],
                opt_level=os.environ.get("AQUEDUCT_OPTIMIZE", "3"),
                debug_level="0",
                target_dir=str(WORK / "c"),
            )
        except SystemExit as failure:  # mypy has printed its errors
            do_without(f"mypyc failed with {failure.code}")
            return []
    if os.name == "posix":
        # Python's own flags have -Wall. On generated code, that takes three times as long as the
        # rest of a build without optimization.
        for extension in extensions:
            extension.extra_compile_args.append("-Wno-all")
    return list(extensions)


def copy_sources(modules: list[str]) -> None:
    """Copy the sources for mypyc, and add docstrings and dataclass constructors to the copies."""
    shutil.rmtree(WORK / "src", ignore_errors=True)
    shutil.copytree("src", WORK / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for module in modules:
        path = WORK / "src" / module
        source = with_constructors(path.read_text(encoding="utf-8"))
        path.write_text(with_docstrings(source), encoding="utf-8")


def with_docstrings(source: str) -> str:
    """Return a module that sets the docstrings of its classes, which mypyc drops.

    Each statement replaces a blank line after its class, so that line numbers do not change.
    """
    lines = [*source.splitlines(), ""]
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and (text := ast.get_docstring(node)):
            put_after(node, f'setattr({node.name}, "__doc__", {text!r})', lines)
    return "\n".join(lines) + "\n"


def with_constructors(source: str) -> str:
    """Return a module whose dataclasses have an ``__init__`` in their source.

    mypyc compiles it. An ``__init__`` that `dataclass` generates stays interpreted, and takes five
    to fifteen times as long. Each added ``__init__`` replaces a blank line after its class.
    """
    lines = [*source.splitlines(), ""]
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or len(node.decorator_list) != 1:
            continue
        decorator = node.decorator_list[0]
        made = constructor_of(node)
        if ast.unparse(decorator) in DATACLASSES and made:
            line = decorator.lineno - 1
            lines[line] = lines[line].replace("dataclass(", "dataclass(init=False, ")
            put_after(node, f"    {made}", lines)
    return "\n".join(lines) + "\n"


def constructor_of(node: ast.ClassDef) -> str:
    """Return the ``__init__`` of a dataclass as one line, or "" if the class keeps its own."""
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    fields = [one for one in fields if "ClassVar" not in ast.unparse(one.annotation)]
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    if not fields or node.bases or methods & {"__init__", "__post_init__"}:
        return ""
    if any(isinstance(one.value, ast.Call) for one in fields):
        return ""  # a field() may declare more than a default
    names = [ast.unparse(one.target) for one in fields]
    parameters = ", ".join(ast.unparse(one) for one in fields)
    body = "; ".join(f"self.{name} = {name}" for name in names)
    # `type: ignore`, because mypy treats the attributes as frozen here, too.
    return f"def __init__(self, {parameters}) -> None: {body}  # type: ignore"


def put_after(node: ast.ClassDef, statement: str, lines: list[str]) -> None:
    """Replace the first blank line after a class."""
    assert node.end_lineno is not None
    assert not lines[node.end_lineno], f"a blank line has to follow class {node.name}"
    lines[node.end_lineno] = statement


class OptionalBuild(build_ext):  # type: ignore[misc]
    """Builds the extensions; after a failure the package runs as plain Python."""

    def run(self) -> None:
        """Build the extensions, or report why that failed."""
        try:
            super().run()
        except (CCompilerError, ExecError, PlatformError) as error:
            do_without(error)
            self.extensions: list[Extension] = []


main()
