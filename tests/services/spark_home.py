"""The Spark that came with pyspark, as processes of its own see it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from millrace.spark.java import find_java


def spark_home() -> Path:
    """Where its jars and scripts are."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def spark_environment() -> dict[str, str]:
    """What a master, a worker, a server or a driver of this Spark finds in its environment."""
    return {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
