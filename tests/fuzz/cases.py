"""Fuzzer inputs as files: target, variant of the target, and bytes.

A file has one line of JSON followed by the raw bytes, so that an editor shows most of it. Its name is a digest, so an
input is saved only once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".case"


@dataclass(frozen=True, slots=True)
class Case:
    """One input. `variant` names the declaration the target reads it with."""

    target: str
    variant: str
    data: bytes

    @property
    def digest(self) -> str:
        """Digest of target, variant and bytes."""
        head = f"{self.target}/{self.variant}/".encode()
        return hashlib.blake2b(head + self.data, digest_size=8).hexdigest()

    def encode(self, note: str = "") -> bytes:
        """Returns the file content; `note` is a comment for people."""
        head = {"target": self.target, "variant": self.variant} | ({"note": note} if note else {})
        return json.dumps(head).encode() + b"\n" + self.data

    @classmethod
    def decode(cls, content: bytes) -> Case:
        """Parses a file's content; drops the note."""
        head, _, data = content.partition(b"\n")
        fields = json.loads(head)
        return cls(fields["target"], fields["variant"], data)

    def save(self, folder: Path, note: str = "") -> Path:
        """Writes the case below `folder`; idempotent."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{self.digest}{SUFFIX}"
        path.write_bytes(self.encode(note))
        return path


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result for one input: events, quarantined events, and the problem found."""

    events: int = 0
    quarantined: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An input judged wrong. Inputs that fail in the same way have equal signatures."""

    case: Case
    signature: str
    detail: str


def replay_command(path: Path) -> str:
    """Returns the command line that judges a saved input again."""
    return f"python -m tests.fuzz --replay {path}"


def read_cases(paths: Sequence[Path]) -> list[tuple[Path, Case]]:
    """Reads the saved inputs at these paths; files of a folder are sorted by name."""
    files = [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    return [(file, Case.decode(file.read_bytes())) for file in files]
