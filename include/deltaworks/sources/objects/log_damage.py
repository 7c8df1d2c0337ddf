"""Detects a damaged file event log. Retries could not repair it, so it must not be treated as an outage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltalake.exceptions import DeltaError

from deltaworks.errors import ContractError

#: The message of delta-rs for a commit that is not JSON; it has no error class. A missing commit may be a delayed
#: listing.
_DAMAGE_MESSAGE: Final = re.compile(r"\bJson error\b")


@contextmanager
def raise_log_damage(key: str) -> Iterator[None]:
    """Raises LOG_DAMAGED if delta-rs finds the log damaged within the block; other errors pass through.

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
            # delta-rs appends a backtrace after the first line.
            f"The file event log {key} cannot be read because its `_delta_log` is damaged: "
            f"{str(error).splitlines()[0]}.",
        ) from error
