"""The jars Spark needs beyond its own: resolved and compiled once by Maven, and the lake's server beside them.

`target/jars` is the class path of every driver and executor. It holds nothing that pyspark ships itself, so no
class exists twice in two versions.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.specs.catalog import project_root
from deltaworks.tables.spark.toolchain import find_java, find_maven

MAVEN_TIMEOUT_SECONDS = 1800
_OUTPUT_LINES = 15
_STAMP = "stamp.json"


@dataclass(frozen=True, slots=True)
class JarSet:
    """The resolved jars. `jar_count` and `bytes` are of the class path, without the server's jar."""

    class_path_dir: Path
    s3proxy_jar: Path
    jar_count: int
    bytes: int


def quiet(_: str) -> None:
    """Print nothing."""


def ensure_jars(*, progress: Callable[[str], None] = quiet) -> JarSet:
    """Resolve and compile what is missing or out of date; a set that is up to date costs milliseconds.

    Processes that call it at once wait for the first. The folder is replaced as a whole at the end: running JVMs
    keep the files they have open.

    Raises:
        ConfigError: JAVA_MISSING, JAVA_TOO_OLD, MAVEN_MISSING or PACKAGE_MISSING.
        TransientError: JARS_NOT_RESOLVED, Maven failed; its last lines are in the message.
    """
    project = project_root() / "include" / "jars"
    target = project / "target"
    fingerprint = _fingerprint(project)
    current = _up_to_date(target, fingerprint)
    if current is not None:
        return current
    with _one_builder(target):
        current = _up_to_date(target, fingerprint)
        if current is None:
            _build(project, target, fingerprint, progress)
            current = _up_to_date(target, fingerprint)
    if current is None:
        raise ConfigError(
            "JARS_INCOMPLETE",
            f"Maven succeeded, but {target} does not hold the jars pom.xml names.",
            hint=f"Delete {target} and run `make jars` again.",
        )
    return current


def ensure_broker_jars(*, progress: Callable[[str], None] = quiet) -> Path:
    """The folder with the jars of the Kafka broker, resolved when a broker is first wanted.

    Raises:
        ConfigError: JAVA_MISSING, JAVA_TOO_OLD, MAVEN_MISSING.
        TransientError: JARS_NOT_RESOLVED.
    """
    project = project_root() / "include" / "jars" / "broker"
    target = project.parent / "target" / "broker"
    digest = hashlib.sha256((project / "pom.xml").read_bytes()).hexdigest()
    stamp = target / "stamp"
    with _one_builder(target):
        if not stamp.is_file() or stamp.read_text() != digest:
            progress("jars: resolving the Kafka broker with Maven (half a minute the first time)")
            stamp.unlink(missing_ok=True)
            shutil.rmtree(target / "jars", ignore_errors=True)
            _run_maven(project)
            stamp.write_text(digest)
    return target / "jars"


def class_path_names(resolved: list[str], shipped: list[str]) -> list[str]:
    """The jars of `resolved` that are not among `shipped` in any version."""
    own = {artifact_name(name) for name in shipped}
    return sorted(name for name in resolved if artifact_name(name) not in own)


def artifact_name(jar: str) -> str:
    """A jar's artifact without version and classifier: `netty-common-4.2.13.Final.jar` is `netty-common`."""
    return re.split(r"-\d+\.\d", jar.removesuffix(".jar"), maxsplit=1)[0]


def _fingerprint(project: Path) -> str:
    digest = hashlib.sha256(_pyspark_version().encode())
    for path in [project / "pom.xml", *sorted(project.glob("src/main/java/**/*.java"))]:
        digest.update(str(path.relative_to(project)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _pyspark_version() -> str:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            "PACKAGE_MISSING",
            f"pyspark is not installed in {sys.prefix}.",
            hint="Install the lock file: uv pip sync requirements.lock.",
        ) from error


def _up_to_date(target: Path, fingerprint: str) -> JarSet | None:
    folder = target / "jars"
    try:
        stamp = json.loads((folder / _STAMP).read_text())
        sizes = [(folder / name).stat().st_size for name in stamp["jars"]]
    except (OSError, ValueError, KeyError):
        return None
    server = target / "s3proxy" / stamp["s3proxy"]
    if stamp["fingerprint"] != fingerprint or not server.exists():
        return None
    return JarSet(class_path_dir=folder, s3proxy_jar=server, jar_count=len(sizes), bytes=sum(sizes))


@contextmanager
def _one_builder(target: Path) -> Iterator[None]:
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(project: Path, target: Path, fingerprint: str, progress: Callable[[str], None]) -> None:
    progress("jars: resolving and compiling with Maven (about two minutes the first time)")
    for stale in ("resolved", "s3proxy", "jars.new"):
        shutil.rmtree(target / stale, ignore_errors=True)
    _run_maven(project)
    resolved = target / "resolved"
    names = class_path_names([path.name for path in resolved.glob("*.jar")], _shipped_jars())
    fresh = target / "jars.new"
    fresh.mkdir()
    for name in names:
        (resolved / name).rename(fresh / name)
    server = next((target / "s3proxy").glob("s3proxy-*.jar"))
    stamp = {"fingerprint": fingerprint, "jars": names, "s3proxy": server.name}
    (fresh / _STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
    shutil.rmtree(target / "jars", ignore_errors=True)
    fresh.rename(target / "jars")
    shutil.rmtree(resolved)


def _shipped_jars() -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return []
    return [path.name for path in Path(next(iter(spec.submodule_search_locations)), "jars").glob("*.jar")]


def _run_maven(project: Path) -> None:
    java = find_java()
    command = [str(find_maven()), "-q", "-B", "-ntp", f"-Dspark.version={_pyspark_version()}", "package"]
    try:
        done = subprocess.run(
            command,
            cwd=project,
            env={**os.environ, "JAVA_HOME": str(java.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAVEN_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _not_resolved(f"it took more than {MAVEN_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        raise _not_resolved("\n".join(done.stdout.strip().splitlines()[:_OUTPUT_LINES]))


def _not_resolved(reason: str) -> TransientError:
    return TransientError(
        "JARS_NOT_RESOLVED",
        f"Maven could not resolve or compile include/jars/pom.xml: {reason}",
        hint="Check that Maven reaches its repositories (mirrors go into ~/.m2/settings.xml), then run `make jars`.",
    )


def main() -> int:
    """Make the jars and say what there is."""
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        print(f"==> {line}", flush=True)

    try:
        jars = ensure_jars(progress=progress)
    except DeltaworksError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    state = "built" if lines else "up to date"
    print(f"==> jars: {state}, {jars.jar_count} jars, {jars.bytes / 1e6:.1f} MB in {jars.class_path_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
