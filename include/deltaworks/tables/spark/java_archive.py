"""Makes the archive of Java's classes: a session does a little of everything once, and its JVM writes what it loaded.

Application class-data sharing, JEP 310 and JEP 350. An archive holds for one Java, one class path and the very jars on
it; whatever else a driver loads, it loads as ever.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import project_root
from deltaworks.specs.spark_conf import java_archive, java_archive_options, java_archive_stamp, project_paths
from deltaworks.tables.spark.toolchain import find_java

TIMEOUT_SECONDS = 600


def ensure_java_archive(*, progress: Callable[[str], None], root: Path | None = None) -> Path | None:
    """Make the archive where there is none of this Java, these jars and this folder. Returns None where it fails.

    Nothing needs the archive, so a failure is said and not raised. A driver never sees one that is not whole: it takes
    its name once the JVM that wrote it has ended. Processes that call it at once each make the same one.
    """
    root = root or project_root()
    archive, stamp = java_archive(root), java_archive_stamp(root)
    fingerprint = _fingerprint(root)
    if not fingerprint:
        return None
    if java_archive_options(root) and json.loads(stamp.read_text()).get("fingerprint") == fingerprint:
        return archive
    progress("jars: archiving the classes of a driver, so that each starts faster (half a minute, once)")
    stamp.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=archive.parent) as folder:
        new_archive = Path(folder) / archive.name
        failure = _write_archive(new_archive)
        if failure:
            progress(f"jars: no archive of classes, drivers start without one: {failure}")
            return None
        size = new_archive.stat().st_size
        new_archive.replace(archive)
        new_stamp = Path(folder) / stamp.name
        new_stamp.write_text(json.dumps({"fingerprint": fingerprint, "bytes": size}) + "\n")
        new_stamp.replace(stamp)
    return archive


def _fingerprint(root: Path) -> str:
    """What an archive is made of: the Java, the class path with the jars on it, and what the session did. Nothing
    where there is no Java or no jars."""
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
    """Run the session; returns what went wrong, or nothing."""
    command = [sys.executable, "-m", "deltaworks.tables.spark.java_archive_training", str(archive)]
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
