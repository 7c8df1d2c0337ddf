"""The state that a stack keeps between `down` and the next `up`, and the lock against concurrent commands."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from deltaworks.errors import ConcurrencyError, ContractError
from sandbox.stack.home import StackHome


@dataclass(frozen=True, slots=True)
class StackState:
    """The content of `stack.json`."""

    ports: dict[str, int] = field(default_factory=dict)
    paused_dags: tuple[str, ...] = ()
    stopped_relays: tuple[str, ...] = ()
    stopped_pipelines: tuple[str, ...] = ()
    stopped_processes: tuple[str, ...] = ()
    migrated_for: str = ""
    pools_imported: str = ""

    def replace(self, **changes: Any) -> StackState:
        """Returns the state with some fields changed."""
        return dataclasses.replace(self, **changes)


def load_state(home: StackHome) -> StackState:
    """Reads `stack.json`; returns an empty state if the stack never ran.

    Raises:
        ContractError: STACK_STATE_BROKEN, the file cannot be read.
    """
    try:
        record = json.loads(home.state_file.read_text())
        fields = {item.name for item in dataclasses.fields(StackState)}
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in record.items() if key in fields
        }
        return StackState(**values)
    except FileNotFoundError:
        return StackState()
    except (ValueError, AttributeError, TypeError) as error:
        raise ContractError("STACK_STATE_BROKEN", f"{home.state_file} cannot be read: {error}.") from error


def save_state(home: StackHome, state: StackState) -> None:
    """Replaces `stack.json` atomically."""
    temporary = home.state_file.with_suffix(".json.new")
    temporary.write_text(json.dumps(dataclasses.asdict(state), indent=2) + "\n")
    temporary.replace(home.state_file)


@contextlib.contextmanager
def stack_lock(home: StackHome) -> Iterator[None]:
    """Holds the stack's lock during the block, so that `up` and `down` never run at the same time.

    Raises:
        ConcurrencyError: STACK_BUSY, another command holds it.
    """
    with home.lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConcurrencyError(
                "STACK_BUSY", f"Another command is starting or stopping the stack in {home.root}."
            ) from error
        yield
