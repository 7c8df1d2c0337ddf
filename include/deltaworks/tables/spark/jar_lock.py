"""Lock file with the digests of the jars, `include/jars/jars.lock`, in `sha256sum` format.

It is checked whenever jars are resolved: a jar that a repository replaced is detected before a JVM loads it. The
project's own jar is compiled locally, so it has no line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError, ContractError

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
