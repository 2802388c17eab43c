"""A Spark session with settings that suit streams of small batches on one machine.

Each is the one that was measured to matter; whoever names a setting has it their way. Nothing of
this is needed to use the source: any session does.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

REMOTE = "spark.remote"
"""The setting that names a server of Spark Connect."""

LOGGING = Path(__file__).with_name("log4j2.properties")


def defaults() -> dict[str, str]:
    """The settings of a session, unless they are named."""
    cores = os.cpu_count() or 1
    return {
        "spark.master": "local[*]",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark's own manager takes 100 ms more for each micro-batch.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.python.udf.buffer.size": str(1024 * 1024),
        "spark.sql.session.timeZone": "UTC",
    }


def settings_of(conf: Mapping[str, str]) -> dict[str, str]:
    """What a session starts with. One that is elsewhere (`spark.remote`) was started by others."""
    if REMOTE not in conf:
        return defaults() | dict(conf)
    return {"spark.sql.session.timeZone": "UTC"} | dict(conf)


def session(name: str, **conf: str) -> SparkSession:
    """A session on this machine, or where `conf` says; what it starts with is said on stderr.

    Python's workers are those of this interpreter, unless the environment says otherwise, and Java
    is the one that `find_java` finds: that of `JAVA_HOME`, if it is new enough. Of pandas, which
    nothing here uses, nothing is said.

    Raises:
        NotFound: there is no Java.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if REMOTE not in conf:
        os.environ["JAVA_HOME"] = str(find_java().home)
    settings = settings_of(conf)
    shown = ", ".join(
        f"{key}={value}" for key, value in sorted(settings.items()) if str(LOGGING) not in value
    )
    sys.stderr.write(f"millrace: Spark starts with {shown}; name any of them to change it\n")
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
