"""Runs the command line in this process with a protection of personal data disabled.

`python -m tests.faults.harness.personal_protections OFF COMMAND …`
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from collector import stamps
from collector.redaction import RequestRedactor
from deltaworks.collector_host import process
from deltaworks.events import redaction, redaction_keys
from deltaworks.privacy.tokens.redactor import RedactionOutcome, Redactor

Put = Callable[[Any, str, Any], None]


def _redact(put: Put) -> None:
    """Events are stored unredacted."""
    put(Redactor, "redact", lambda *_, **__: RedactionOutcome.KEPT)
    put(redaction.EventRedaction, "redact_raw", lambda _, raw: (raw, len(raw)))


def _seal_unreadable(put: Put) -> None:
    """Unreadable bodies are stored unsealed."""
    put(stamps._StampWriter, "_unreadable_members", lambda _, text: f'"raw":{stamps.dump_json(text)}')
    put(RequestRedactor, "record_unreadable", lambda *_: None)
    put(redaction.EventRedaction, "_seal_unreadable", lambda _, row: replace(row, original_bytes=len(row.raw)))


def _regulation(put: Put) -> None:
    """Events of children and of people who opted out are treated as any other."""
    original = Redactor.__init__

    def unconditional(self: Any, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more)
        self.opt_out_condition = self.child_condition = None

    put(Redactor, "__init__", unconditional)


def _namespace_key(put: Put) -> None:
    """Each process uses a different token key."""
    own = os.urandom(32)
    for module in (redaction_keys, process):
        put(module, "namespace_token_key", lambda *_: own)


PROTECTIONS: dict[str, Callable[[Put], None]] = {
    "redact": _redact,
    "seal_unreadable": _seal_unreadable,
    "regulation": _regulation,
    "namespace_key": _namespace_key,
}


def disable(off: str, put: Put = setattr) -> None:
    """Disables a protection; does nothing if `off` is empty."""
    if off:
        PROTECTIONS[off](put)


if __name__ == "__main__":
    from deltaworks.cli import main

    disable(sys.argv.pop(1))
    main()
