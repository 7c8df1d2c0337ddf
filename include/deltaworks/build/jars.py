"""Resolves and compiles the jars that Spark needs in addition to its own, once, with Maven.

Every driver and executor has `target/jars` on its class path. The folder contains no jar that pyspark ships, so no
class exists in two versions. pyspark's own jars come in its wheel, whose hash is in requirements.lock.

Every jar is compared with `include/jars/jars.lock` (in `sha256sum` format) before it is copied there: a jar that a
repository replaced is detected before a JVM loads it. The project's own jar is compiled locally, so it has no line.

Third-party scripts of the console's pages are extracted from WebJars, which Maven resolves too.

Writes the Java class archive (application class-data sharing, JEP 310 and 350) that speeds up driver starts, too. A
training session uses typical features once, and its JVM archives the loaded classes. An archive is valid for one Java
version and one class path; classes that it does not contain are loaded as usual.
"""

from __future__ import annotations

import argparse
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
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltaworks.build.toolchain import find_java, find_maven
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.specs.catalog import project_root
from deltaworks.specs.spark_conf import java_archive, java_archive_manifest, java_archive_options, project_paths

TIMEOUT_SECONDS = 600


def ensure_java_archive(*, progress: Callable[[str], None], root: Path | None = None) -> Path | None:
    """Writes the archive unless a valid one exists. Returns None on failure.

    The archive is optional, so a failure is reported and not raised. The archive is renamed to its final name after its
    JVM has ended, so that no driver reads an incomplete one. Concurrent callers each write the same archive.
    """
    root = root or project_root()
    archive, stamp = java_archive(root), java_archive_manifest(root)
    fingerprint = _archive_fingerprint(root)
    if not fingerprint:
        return None
    if java_archive_options(root) and json.loads(stamp.read_text()).get("fingerprint") == fingerprint:
        return archive
    progress("jars: archiving driver classes for faster starts (half a minute, once)")
    stamp.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=archive.parent) as folder:
        new_archive = Path(folder) / archive.name
        failure = _write_archive(new_archive)
        if failure:
            progress(f"jars: could not write the class archive, drivers start without it: {failure}")
            return None
        size = new_archive.stat().st_size
        new_archive.replace(archive)
        new_stamp = Path(folder) / stamp.name
        new_stamp.write_text(json.dumps({"fingerprint": fingerprint, "bytes": size}) + "\n")
        new_stamp.replace(stamp)
    return archive


def _archive_fingerprint(root: Path) -> str:
    """Returns a digest of everything that the archive depends on; empty without Java or jars.

    It covers Java, the class path with its jars, and the training session.
    """
    jars, _ = project_paths(root)
    digest = hashlib.sha256()
    try:
        java = find_java()
        digest.update(f"{java.home} {java.version} {jars.resolve()} {sys.prefix}".encode())
        digest.update((jars / "stamp.json").read_bytes())
    except (ConfigError, OSError):
        return ""
    digest.update(Path(__file__).with_name("java_archive_training.py").read_bytes())
    return digest.hexdigest()


def _write_archive(archive: Path) -> str:
    """Runs the training session, whose JVM writes the archive. Returns the error text; empty on success."""
    command = [sys.executable, "-m", "deltaworks.build.java_archive_training", str(archive)]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {TIMEOUT_SECONDS} s"
    if result.returncode == 0 and archive.is_file():
        return ""
    return "\n".join(result.stdout.strip().splitlines()[-5:]) or f"it ended with {result.returncode}"


# The lock file.

#: Artifacts that are compiled from this repository.
OWN_ARTIFACTS = frozenset({"deltaworks-jars"})
LOCK_COMMAND = "make jarlock"
_HEADER = "# SHA-256 of every jar that Maven resolves for include/jars; `make jarlock` rewrites it."


@dataclass(frozen=True, slots=True)
class JarLock:
    """Recorded digests by file name. `version` is the digest of the complete lock file."""

    path: Path
    digests: dict[str, str]
    version: str

    def verify(self, jars: Iterable[Path]) -> int:
        """Compares jars with their recorded digests, reading every file completely. Returns the number of jars.

        Raises:
            ContractError: JAR_DIGEST_DIFFERS, a jar differs from the recorded digest.
            ConfigError: JAR_NOT_LOCKED, the lock has no line for a jar.
        """
        paths = sorted(jars)
        for path in paths:
            recorded = self.digests.get(path.name)
            if recorded is None:
                raise ConfigError(
                    "JAR_NOT_LOCKED",
                    f"{self.path} has no digest of {path.name}, so the file cannot be verified.",
                    hint=f"If a pom.xml has changed, rewrite the lock with `{LOCK_COMMAND}`, then review it.",
                )
            actual = digest_of(path)
            if actual != recorded:
                raise ContractError(
                    "JAR_DIGEST_DIFFERS",
                    f"{path} has SHA-256 {actual}, but {self.path} records {recorded}: it differs from the "
                    "reviewed jar. No JVM has loaded it.",
                )
        return len(paths)


def read_jar_lock(path: Path) -> JarLock:
    """Reads the lock file at `path`.

    Raises:
        ConfigError: JAR_NOT_LOCKED, the file is missing or has an invalid line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            "JAR_NOT_LOCKED",
            f"Cannot read {path}: {error.strerror}.",
            hint=f"Take it from the release, or `{LOCK_COMMAND}`.",
        ) from error
    digests: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name.endswith(".jar"):
            raise ConfigError(
                "JAR_NOT_LOCKED",
                f"{path}:{number}: expected a SHA-256, two spaces and the name of a jar.",
                hint=f"Take the line from the release, or `{LOCK_COMMAND}`.",
            )
        digests[name] = digest
    return JarLock(path=path, digests=digests, version=hashlib.sha256(text.encode()).hexdigest())


def write_jar_lock(path: Path, jars: Iterable[Path]) -> int:
    """Replaces the lock file atomically by one with the digests of `jars`. Returns the number of jars."""
    lines = [f"{digest_of(jar)}  {jar.name}" for jar in sorted(jars, key=lambda jar: jar.name)]
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text("\n".join([_HEADER, *lines]) + "\n", encoding="utf-8")
    temporary.replace(path)
    return len(lines)


def digest_of(path: Path) -> str:
    """Returns a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Scripts from WebJars.

#: File name in the console's folder -> WebJar pattern and path in the jar.
WEB_FILES: Final = {"htmx.min.js": ("htmx.org-*.jar", "dist/htmx.min.js")}


def unpack_web_files(web: Path, folder: Path) -> list[Path]:
    """Writes the scripts of the jars in `web` to `folder`. Unchanged files are not written again. Safe for concurrent
    callers.

    Raises:
        ConfigError: JARS_INCOMPLETE, a jar is missing or does not contain the file.
    """
    written = []
    for name, (pattern, path_in_jar) in WEB_FILES.items():
        data = _read_from_jar(web, pattern, path_in_jar)
        target = folder / name
        if not target.is_file() or target.read_bytes() != data:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{name}.{uuid.uuid4().hex}"
            temporary.write_bytes(data)
            temporary.replace(target)
        written.append(target)
    return written


def _read_from_jar(web: Path, pattern: str, entry_suffix: str) -> bytes:
    for jar in sorted(web.glob(pattern)):
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.namelist():
                if entry.endswith(entry_suffix):
                    return archive.read(entry)
    raise ConfigError("JARS_INCOMPLETE", f"No jar {pattern} in {web} holds {entry_suffix}.")


# Resolving and compiling.

MAVEN_TIMEOUT_SECONDS = 1800
_OUTPUT_LINES = 15
_STAMP = "stamp.json"
LOCK_NAME = "jars.lock"
#: Folder with the third-party scripts that the console's pages use.
CONSOLE_FILES = Path("include", "deltaworks", "console", "static")


@dataclass(frozen=True, slots=True)
class JarSet:
    """The resolved jars. The numbers `jar_count` and `bytes` cover the class path, without the jar of the S3 server."""

    class_path_dir: Path
    s3proxy_jar: Path
    jar_count: int
    bytes: int


def ignore_progress(_: str) -> None:
    """Discards progress messages."""


def ensure_jars(*, progress: Callable[[str], None] = ignore_progress) -> JarSet:
    """Resolves and compiles missing or outdated jars. Takes milliseconds if they are up to date.

    Concurrent callers wait for the first one. The folder is replaced at the end; running JVMs keep their open files.
    Digests are compared if jars were resolved or the lock file changed.

    Raises:
        ConfigError: JAVA_MISSING, JAVA_TOO_OLD, MAVEN_MISSING, PACKAGE_MISSING or JAR_NOT_LOCKED.
        ContractError: JAR_DIGEST_DIFFERS.
        TransientError: JARS_NOT_RESOLVED, Maven failed; the message has its last lines.
    """
    project = project_root() / "include" / "jars"
    target = project / "target"
    fingerprint = _fingerprint(project)
    lock = read_jar_lock(project / LOCK_NAME)
    current = _current_jar_set(target, fingerprint, lock)
    if current is not None:
        unpack_web_files(target / "web", project_root() / CONSOLE_FILES)
        return current
    with _build_lock(target):
        current = _current_jar_set(target, fingerprint, lock) or _verify_current_jars(target, fingerprint, lock)
        if current is None:
            _build(project, target, fingerprint, lock, progress)
            current = _current_jar_set(target, fingerprint, lock)
    if current is None:
        raise ConfigError(
            "JARS_INCOMPLETE",
            f"Maven succeeded, but {target} does not hold the jars pom.xml names.",
            hint=f"Delete {target} and run `make jars` again.",
        )
    unpack_web_files(target / "web", project_root() / CONSOLE_FILES)
    return current


def ensure_broker_jars(*, progress: Callable[[str], None] = ignore_progress) -> Path:
    """Returns the folder with the jars of the Kafka broker; resolves them on first use.

    Raises:
        ConfigError: JAVA_MISSING, JAVA_TOO_OLD, MAVEN_MISSING, JAR_NOT_LOCKED.
        ContractError: JAR_DIGEST_DIFFERS.
        TransientError: JARS_NOT_RESOLVED.
    """
    project = project_root() / "include" / "jars" / "broker"
    target = project.parent / "target" / "broker"
    lock = read_jar_lock(project.parent / LOCK_NAME)
    digest = hashlib.sha256((project / "pom.xml").read_bytes() + lock.version.encode()).hexdigest()
    stamp = target / "stamp"
    with _build_lock(target):
        if not stamp.is_file() or stamp.read_text() != digest:
            progress("jars: resolving the Kafka broker with Maven (half a minute the first time)")
            stamp.unlink(missing_ok=True)
            _resolve_broker(project, target)
            lock.verify((target / "jars").glob("*.jar"))
            stamp.write_text(digest)
    return target / "jars"


def record_digests(*, progress: Callable[[str], None] = ignore_progress) -> Path:
    """Resolves all jars and writes a new lock file with their digests. Returns the lock file's path.

    Review the difference to the previous lock file, because these jars are trusted from then on.

    Raises:
        ConfigError: JAVA_MISSING, JAVA_TOO_OLD, MAVEN_MISSING or PACKAGE_MISSING.
        TransientError: JARS_NOT_RESOLVED.
    """
    project = project_root() / "include" / "jars"
    target = project / "target"
    with _build_lock(target), _build_lock(target / "broker"):
        progress("jars: resolving everything with Maven")
        names = _resolve(project, target)
        _resolve_broker(project / "broker", target / "broker")
        jars = {path.name: path for path in (target / "broker" / "jars").glob("*.jar")}
        jars |= {name: target / "resolved" / name for name in names}
        jars |= {path.name: path for kind in ("s3proxy", "web") for path in (target / kind).glob("*.jar")}
        write_jar_lock(project / LOCK_NAME, _third_party_jars(jars.values()))
        shutil.rmtree(target / "resolved")
    return project / LOCK_NAME


def class_path_names(resolved: list[str], shipped: list[str]) -> list[str]:
    """Returns those of the `resolved` jars that Spark does not ship in any version."""
    shipped_artifacts = {artifact_name(name) for name in shipped}
    return sorted(name for name in resolved if artifact_name(name) not in shipped_artifacts)


def artifact_name(jar: str) -> str:
    """Returns a jar's name without version and classifier: `netty-common` for `netty-common-4.2.13.Final.jar`."""
    return re.split(r"-\d+\.\d", jar.removesuffix(".jar"), maxsplit=1)[0]


def _fingerprint(project: Path) -> str:
    digest = hashlib.sha256(_pyspark_version().encode())
    for path in [project / "pom.xml", *sorted(path for path in project.glob("src/main/**/*") if path.is_file())]:
        digest.update(str(path.relative_to(project)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _pyspark_version() -> str:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError("PACKAGE_MISSING", f"pyspark is not installed in {sys.prefix}.") from error


def _current_jar_set(target: Path, fingerprint: str, lock: JarLock | None) -> JarSet | None:
    """Returns the existing jars if they were built from these sources and, if given, compared with this lock; else
    None.
    """
    folder = target / "jars"
    try:
        stamp = json.loads((folder / _STAMP).read_text())
        sizes = [(folder / name).stat().st_size for name in stamp["jars"]]
    except (OSError, ValueError, KeyError):
        return None
    server = target / "s3proxy" / stamp["s3proxy"]
    if stamp["fingerprint"] != fingerprint or not server.exists() or not any((target / "web").glob("*.jar")):
        return None
    if lock is not None and stamp.get("lock") != lock.version:
        return None
    return JarSet(class_path_dir=folder, s3proxy_jar=server, jar_count=len(sizes), bytes=sum(sizes))


def _verify_current_jars(target: Path, fingerprint: str, lock: JarLock) -> JarSet | None:
    """Compares the existing jars with a changed lock and returns them; None if the sources changed. Needs no Maven."""
    current = _current_jar_set(target, fingerprint, None)
    if current is not None:
        web_jars = (target / "web").glob("*.jar")
        lock.verify(_third_party_jars([*current.class_path_dir.glob("*.jar"), current.s3proxy_jar, *web_jars]))
        names = [path.name for path in current.class_path_dir.glob("*.jar")]
        _write_stamp(current.class_path_dir, fingerprint, lock, names, current.s3proxy_jar)
    return current


def _third_party_jars(jars: Iterable[Path]) -> list[Path]:
    return [path for path in jars if artifact_name(path.name) not in OWN_ARTIFACTS]


@contextmanager
def _build_lock(target: Path) -> Iterator[None]:
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(project: Path, target: Path, fingerprint: str, lock: JarLock, progress: Callable[[str], None]) -> None:
    progress("jars: resolving and compiling with Maven (about two minutes the first time)")
    names = _resolve(project, target)
    resolved, new_folder = target / "resolved", target / "jars.new"
    server = next((target / "s3proxy").glob("s3proxy-*.jar"))
    lock.verify(_third_party_jars([*(resolved / name for name in names), server, *(target / "web").glob("*.jar")]))
    new_folder.mkdir()
    for name in names:
        (resolved / name).rename(new_folder / name)
    _write_stamp(new_folder, fingerprint, lock, names, server)
    shutil.rmtree(target / "jars", ignore_errors=True)
    new_folder.rename(target / "jars")
    shutil.rmtree(resolved)


def _resolve(project: Path, target: Path) -> list[str]:
    """Runs Maven. Returns the names of the class path's jars in `target/resolved`."""
    for stale in ("resolved", "s3proxy", "web", "jars.new"):
        shutil.rmtree(target / stale, ignore_errors=True)
    _run_maven(project)
    return class_path_names([path.name for path in (target / "resolved").glob("*.jar")], _shipped_jars())


def _resolve_broker(project: Path, target: Path) -> None:
    shutil.rmtree(target / "jars", ignore_errors=True)
    _run_maven(project)


def _write_stamp(folder: Path, fingerprint: str, lock: JarLock, names: list[str], server: Path) -> None:
    stamp = {"fingerprint": fingerprint, "lock": lock.version, "jars": sorted(names), "s3proxy": server.name}
    fresh = folder / f".{_STAMP}.new"
    fresh.write_text(json.dumps(stamp, indent=2) + "\n")
    fresh.replace(folder / _STAMP)


def _shipped_jars() -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return []
    return [path.name for path in Path(next(iter(spec.submodule_search_locations)), "jars").glob("*.jar")]


def _run_maven(project: Path) -> None:
    java = find_java()
    command = [str(find_maven()), "-q", "-B", "-ntp", f"-Dspark.version={_pyspark_version()}", "package"]
    try:
        result = subprocess.run(
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
        raise _not_resolved_error(f"it took more than {MAVEN_TIMEOUT_SECONDS} s") from error
    if result.returncode != 0:
        raise _not_resolved_error("\n".join(result.stdout.strip().splitlines()[:_OUTPUT_LINES]))


def _not_resolved_error(reason: str) -> TransientError:
    return TransientError("JARS_NOT_RESOLVED", f"Maven could not resolve or compile include/jars/pom.xml: {reason}")


def main(arguments: list[str] | None = None) -> int:
    """Builds the jars. `--broker` also resolves the Kafka broker's jars; `--record` writes a new lock file first."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--record", action="store_true", help="rewrite include/jars/jars.lock first")
    parser.add_argument("--broker", action="store_true", help="resolve the Kafka broker as well")
    parser.add_argument(
        "--without-archive",
        action="store_true",
        help="do not write the class archive, which takes a minute and speeds up later starts",
    )
    options = parser.parse_args(arguments)
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        print(f"==> {line}", flush=True)

    try:
        if options.record:
            progress(f"jars: digests recorded in {record_digests(progress=progress)}")
        jars = ensure_jars(progress=progress)
        if options.broker:
            ensure_broker_jars(progress=progress)
        if not options.without_archive:
            ensure_java_archive(progress=progress)
    except DeltaworksError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    state = "built" if lines else "up to date"
    print(f"==> jars: {state}, {jars.jar_count} jars, {jars.bytes / 1e6:.1f} MB in {jars.class_path_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
