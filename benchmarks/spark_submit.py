"""Starts drivers by spark-submit, as Airflow's tasks do, for a project in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any


def link_library(root: Path) -> None:
    """Links the library, its jars and Spark's settings into the project in the folder `root`."""
    from deltaworks.specs.catalog import PROJECT_ROOT

    for name in ("include/deltaworks", "include/spark", "include/jars"):
        (root / name).symlink_to(PROJECT_ROOT / name)


def submit(root: Path, job: str, *arguments: str, log: IO[Any]) -> subprocess.Popen[bytes]:
    """Starts a job of the project at `root` in a new process group. Its output goes to `log`."""
    import pyspark

    from deltaworks.build.toolchain import find_java
    from deltaworks.specs.catalog import PROJECT_ROOT
    from deltaworks.specs.project import load_catalog
    from deltaworks.specs.spark_conf import submit_conf

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[2]"]
    for name, value in submit_conf(load_catalog("local", root=root).environment, root).items():
        command += ["--conf", f"{name}={value}"]
    return subprocess.Popen(
        [*command, str(PROJECT_ROOT / "spark_jobs" / f"{job}.py"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT_ROOT / "include"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "JAVA_HOME": str(find_java().home),
            "DELTAWORKS_PROJECT": str(root),
            "DELTAWORKS_ENVIRONMENT": "local",
            "TZ": "UTC",
        },
    )
