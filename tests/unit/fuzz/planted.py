"""A judging process with faults in it, to see that the fuzzer sees them: `python -m tests.unit.fuzz.planted`."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import child, registry
from tests.fuzz.cases import Case

FAULTS = ("right", "segfault", "memory", "busy", "exception", "losing", "random")


@dataclass(frozen=True, slots=True)
class Planted:
    """A target that goes wrong on inputs with an exclamation mark."""

    name: str
    kind: str = "json"

    def variants(self) -> Sequence[str]:
        return ("only",)

    def inputs(self, variant: str) -> st.SearchStrategy[bytes]:
        return st.binary(max_size=12).map(lambda data: data + b"!" * (len(data) % 2))

    def observe(self, case: Case) -> Any:
        if b"!" in case.data:
            _go_wrong(self.name)
        return Seen(os.urandom(8) if self.name == "random" else case.data)

    def problems(self, case: Case, observed: Any) -> Sequence[str]:
        return ["an event vanished"] if self.name == "losing" and b"!" in case.data else []

    def counts(self, observed: Any) -> tuple[int, int]:
        return 1, 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a planted target makes of an input."""

    data: bytes

    def differs(self, other: Seen) -> bool:
        return self.data != other.data


def _go_wrong(fault: str) -> None:
    match fault:
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "memory":
            bytearray(child.MOST_RESIDENT_BYTES + (64 << 20))
        case "busy":
            while True:
                pass
        case "exception":
            raise LookupError("nobody thought of that")


def _losing(real: Any, name: str) -> Any:
    """The real target, whose framer of JSON loses the last event of each payload."""
    from deltaworks.events.formats import json as framing

    # Importing it may take longer than a planted fault needs.
    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    values = framing.read_events
    framing.read_events = lambda *payload, **options: list(values(*payload, **options))[:-1]
    return real(name)


def main() -> None:
    """Judge with planted targets, and with a JSON framer that loses the last event of each payload."""
    child.MOST_CPU_SECONDS, child.MOST_RESIDENT_BYTES = 1, 64 << 20
    planted = {name: Planted(name) for name in FAULTS}
    real = registry.target

    def target(name: str) -> Any:
        return planted[name] if name in planted else _losing(real, name)

    registry.target = target  # type: ignore[assignment]
    child.Hunt._damaged = lambda hunt, variant: iter(())  # type: ignore[method-assign]
    child.main()


if __name__ == "__main__":
    main()
