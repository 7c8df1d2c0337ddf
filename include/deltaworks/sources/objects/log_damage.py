"""A file event log that is damaged: said at once and by its name, where an outage would be waited for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltalake.exceptions import DeltaError

from deltaworks.errors import ContractError

#: What delta-rs says of a commit that is no JSON; it has no class for it. One that is missing may yet be listed.
_DAMAGE_MESSAGE: Final = re.compile(r"\bJson error\b")


@contextmanager
def raise_log_damage(key: str) -> Iterator[None]:
    """Name the damage of the log at a key that delta-rs meets within the block; any other error goes on as it is.

    Raises:
        ContractError: LOG_DAMAGED.
    """
    try:
        yield
    except DeltaError as error:
        if not _DAMAGE_MESSAGE.search(str(error)):
            raise
        raise ContractError(
            "LOG_DAMAGED",
            # A backtrace of delta-rs follows its first line.
            f"The file event log {key} cannot be read, its `_delta_log` is damaged: {str(error).splitlines()[0]}.",
            hint="Stop the relay, put its `_delta_log` back as it was, then restart what reads it and start the relay.",
        ) from error
