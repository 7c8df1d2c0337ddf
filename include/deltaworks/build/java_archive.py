"""Writes the Java class archive (application class-data sharing, JEP 310 and 350) that speeds up driver starts.

A training session uses typical features once, and its JVM archives the loaded classes. An archive is valid for one Java
version and one class path; classes that it does not contain are loaded as usual.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from deltaworks.build.toolchain import find_java
from deltaworks.errors import ConfigError
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
    fingerprint = _fingerprint(root)
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


def _fingerprint(root: Path) -> str:
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
