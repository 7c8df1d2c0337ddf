"""Inputs of the fuzzer as files: which target they are for, in which variant of it, and their bytes.

A file has a line of JSON, then the bytes as they are, so that an editor shows most of them. Its name is a digest, so
the same input is saved once.
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
    """One input. `variant` says how the target is declared to read it."""

    target: str
    variant: str
    data: bytes

    @property
    def digest(self) -> str:
        """What distinguishes it from every other input."""
        head = f"{self.target}/{self.variant}/".encode()
        return hashlib.blake2b(head + self.data, digest_size=8).hexdigest()

    def encode(self, note: str = "") -> bytes:
        """As a file holds it; `note` is for people."""
        head = {"target": self.target, "variant": self.variant} | ({"note": note} if note else {})
        return json.dumps(head).encode() + b"\n" + self.data

    @classmethod
    def decode(cls, content: bytes) -> Case:
        """The reverse of `encode`, without the note."""
        head, _, data = content.partition(b"\n")
        fields = json.loads(head)
        return cls(fields["target"], fields["variant"], data)

    def save(self, folder: Path, note: str = "") -> Path:
        """Write it below `folder`; idempotent."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{self.digest}{SUFFIX}"
        path.write_bytes(self.encode(note))
        return path


@dataclass(frozen=True, slots=True)
class Verdict:
    """What judging one input came to: events, how many of them are in quarantine, and what is wrong."""

    events: int = 0
    quarantined: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that was judged wrong. `signature` is the same for inputs that fail in the same way."""

    case: Case
    signature: str
    detail: str


def replay_command(path: Path) -> str:
    """The line that judges a saved input again."""
    return f"python -m tests.fuzz --replay {path}"


def read_cases(paths: Sequence[Path]) -> list[tuple[Path, Case]]:
    """The saved inputs at these paths; those of a folder in the order of their names."""
    files = [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    return [(file, Case.decode(file.read_bytes())) for file in files]
