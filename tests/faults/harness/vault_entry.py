"""Runs the vault's job in a separate process that is killed at a given step; protections can be disabled.

`python -m tests.faults.harness.vault_entry FOLDER [--kill STEP] [--off NAME]`
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deltaworks.control.locks import exclusive
from deltaworks.control.objects import LocalObjects
from deltaworks.privacy.vault import ingest, namespace_vault
from deltaworks.privacy.vault.job import run_ingest
from deltaworks.privacy.vault.key_pages import SubjectKeys
from deltaworks.privacy.vault.tables import VaultTables
from tests.unit.privacy.vault.vault_harness import NAMESPACE, environment_of

#: Step at which the process dies, named for the action before or after it.
STEPS: dict[str, tuple[Any, str, str]] = {
    "keys are made": (SubjectKeys, "get_or_create", "after"),
    "cells are merged": (VaultTables, "merge_identities", "after"),
    "links are merged": (VaultTables, "merge_links", "after"),
    "files are to be deleted": (LocalObjects, "delete", "before"),
    "the first file is deleted": (LocalObjects, "delete", "after"),
}


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_at(step: str) -> None:
    owner, name, when = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)

    def dying(self: Any, *arguments: Any, **more: Any) -> Any:
        # The lock's object is deleted too, at the end.
        counts = name != "delete" or str(arguments[0]).startswith("sealed/")
        if counts and when == "before":
            _die()
        result = original(self, *arguments, **more)
        if counts:
            _die()
        return result

    setattr(owner, name, dying)


def _state_after_deed() -> None:
    """Files are deleted before their content has landed."""
    landed = ingest.VaultIngest._write_rows

    def deleted_first(self: Any, kept: Any, portion: Any) -> None:
        for file in portion:
            self._files.delete(file.key)
        landed(self, kept, portion)

    ingest.VaultIngest._write_rows = deleted_first  # type: ignore[method-assign]


PROTECTIONS: dict[str, Callable[[], None]] = {"state_after_deed": _state_after_deed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", choices=STEPS)
    parser.add_argument("--off", choices=PROTECTIONS)
    options = parser.parse_args(arguments)
    # A killed process holds the lock until it expires, so the time is short here.
    namespace_vault.TTL_SECONDS = exclusive.TTL_SECONDS = 1.0
    namespace_vault.NamespaceVault.lock.__wrapped__.__kwdefaults__["ttl_seconds"] = 1.0  # type: ignore[attr-defined]
    if options.off:
        PROTECTIONS[options.off]()
    if options.kill:
        _kill_at(options.kill)
    run_ingest(environment_of(options.folder), NAMESPACE, dry_run=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
