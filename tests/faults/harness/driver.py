"""A stream's driver as real processes: spark-submit's JVM and its Python in a separate process group."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from deltaworks.build.toolchain import find_java
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from deltaworks.specs.share_conf import launch_settings
from deltaworks.specs.spark_conf import submit_conf
from tests.faults.harness import injection, protections
from tests.faults.harness.fault_project import FaultProject
from tests.faults.harness.injection import Fault
from tests.faults.harness.process_group import ProcessGroup
from tests.spark.engine.group_harness import GroupHarness

ENTRY = Path(__file__).with_name("entry.py")
END_SECONDS = 150.0
GONE_SECONDS = 15.0


class Driver(ProcessGroup):
    """One run of the stream. Leaving the `with` block kills it in any state."""

    def __init__(
        self,
        stage: FaultProject | GroupHarness,
        *,
        faults: Sequence[Fault] = (),
        off: Sequence[str] = (),
        clock_seconds: float = 0.0,
        available_now: bool = True,
        environment: dict[str, str] | None = None,
        master: str = "local[2]",
    ) -> None:
        """Starts the driver.

        Args:
            environment: additional variables; with several pipelines DELTAWORKS_TEST_PIPELINE selects one.
            master: a cluster's address; the driver then gets the resources of a stream.
        """
        self.number = len(list(stage.root.glob("driver-*.log"))) + 1
        self.timeline = stage.root / f"driver-{self.number}.timeline"
        self.timeline.touch()
        self.started = time.monotonic()
        super().__init__(
            _command(stage, available_now=available_now, off=off, master=master),
            log=stage.root / f"driver-{self.number}.log",
            environment={
                **python_environment(),
                **stage.environment(),
                injection.FAULTS: injection.as_variable(faults),
                injection.TIMELINE: str(self.timeline),
                protections.OFF: " ".join(off),
                protections.CLOCK: str(clock_seconds),
                **(environment or {}),
            },
            folder=stage.root,
        )

    def points(self) -> list[tuple[float, int, str]]:
        """Returns the points reached so far: monotonic seconds, process id, point."""
        lines = [line.split(" ", 2) for line in self.timeline.read_text().splitlines()]
        return [(float(at), int(pid), point) for at, pid, point in lines]

    def first_reached_at(self, point: str) -> float | None:
        """Returns when a point was first reached, in monotonic seconds."""
        return next((at for at, _, reached in self.points() if reached == point), None)

    def first_fault_at(self) -> float:
        """Returns when the first fault was injected, in monotonic seconds.

        Raises:
            AssertionError: no fault was injected, so the test proves nothing.
        """
        found = [at for at, _, point in self.points() if point.startswith("injected ")]
        assert found, f"no fault was injected; the driver's output ends with\n{self.tail()}"
        return found[0]

    def await_point(self, point: str, seconds: float = END_SECONDS) -> float:
        """Waits until a point is reached, or an entry with this prefix is in the timeline."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for at, _, reached in self.points():
                if reached.startswith(point):
                    return at
            assert self.process.poll() is None or self.alive(), self.tail()
            time.sleep(0.05)
        raise AssertionError(f"{point} was not reached within {seconds:.0f} s; {self.tail()}")

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Waits until the driver and its process group have ended; returns the exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end within {seconds:.0f} s; {self.tail()}") from None
        self.await_group_exit()
        return code

    def run_to_end(self, seconds: float = END_SECONDS) -> int:
        """Calls `wait` and fails unless the exit code is 0."""
        code = self.wait(seconds)
        assert code == 0, f"the driver ended with {code}; {self.tail()}"
        return code

    def await_group_exit(self, seconds: float = GONE_SECONDS) -> float:
        """Waits until no process of the group lives; returns that moment in monotonic seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.alive():
                return time.monotonic()
            time.sleep(0.05)
        raise AssertionError(f"still alive: {self.alive()}")

    def alive(self) -> list[str]:
        """Returns the live processes of the group."""
        found = []
        for process in psutil.process_iter(["pid", "name", "status"]):
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(process.pid) == self.process.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.info['name']} {process.pid}")
        return found

    def final_error(self) -> tuple[str, str]:
        """Returns the condition and message of the error that ended the driver; empty without one."""
        marked = [line for line in self.log.read_text().splitlines() if line.startswith("DELTAWORKS_ERROR ")]
        if not marked:
            return "", ""
        error = json.loads(marked[-1].partition(" ")[2])
        return str(error["condition"]), str(error["message"])


def _command(stage: FaultProject | GroupHarness, *, available_now: bool, off: Sequence[str], master: str) -> list[str]:
    environment = load_catalog(root=stage.root).environment
    launch = (
        None if master.startswith("local") else launch_settings(environment.shares.of("stream"), master, environment)
    )
    conf = submit_conf(environment, stage.root, launch)
    if "put_read_back" in off:
        conf["spark.driver.extraClassPath"] += f"{os.pathsep}{_compiled(stage, protections.FORGETFUL)}"
    conf["spark.driver.extraJavaOptions"] = conf["spark.driver.extraJavaOptions"].replace(
        "-XX:+UseG1GC", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", master]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    return [*command, str(ENTRY), *(["--available-now"] if available_now else [])]


def _compiled(stage: FaultProject | GroupHarness, name: str) -> Path:
    """Compiles a Java class of the harness once per project, against Spark's jars and the product's; returns its
    folder.
    """
    folder = stage.root / "classes"
    if not (folder / f"{name}.class").exists():
        jars = (PROJECT_ROOT / "include" / "jars" / "target" / "jars", Path(pyspark.__file__).parent / "jars")
        class_path = os.pathsep.join(f"{jar}/*" for jar in jars)
        javac = find_java().home / "bin" / "javac"
        source = str(ENTRY.with_name(f"{name}.java"))
        subprocess.run([str(javac), "-d", str(folder), "-cp", class_path, source], check=True)
    return folder


def python_environment() -> dict[str, str]:
    python = PROJECT_ROOT / ".venv" / "bin" / "python"
    return {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(find_java().home),
        "TZ": "UTC",
    }
