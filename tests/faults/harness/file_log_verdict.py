"""Checks a file event log: every announced object must be in it once, and nothing else."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake
from sandbox.servers.fault_proxy import FaultProxy


@dataclass(frozen=True, slots=True)
class FilesVerdict:
    """Result of the check, by object key. `seqs_broken`: the log's sequence numbers have a gap or repeat."""

    lost: Counter[str]
    doubled: Counter[str]
    strange: Counter[str]
    seqs_broken: bool

    @property
    def is_exact(self) -> bool:
        """Whether every object is in the log once, and nothing else."""
        return not (self.lost or self.doubled or self.strange or self.seqs_broken)


def judge_log(lake: StorageSpec, relay: str, owed: Sequence[str]) -> FilesVerdict:
    """Compares a relay's log with the keys that must be in it."""
    rows = FileEventLog(Lake(lake), relay).read(0, columns=["seq", "key"]).to_pylist()
    seen, wanted = Counter(row["key"] for row in rows), Counter(owed)
    return FilesVerdict(
        lost=wanted - seen,
        doubled=Counter({key: count - wanted[key] for key, count in seen.items() if count > wanted[key] > 0}),
        strange=Counter({key: count for key, count in seen.items() if key not in wanted}),
        seqs_broken=[row["seq"] for row in rows] != list(range(1, len(rows) + 1)),
    )


def proxied_landing(landing: Any, proxy: FaultProxy) -> Any:
    """Returns the same landing bucket and queue, reached through a proxy."""
    return dataclasses.replace(landing, endpoint=proxy.endpoint, queue_url=proxied_queue_url(landing.queue_url, proxy))


def proxied_queue_url(queue_url: str, proxy: FaultProxy) -> str:
    """Returns a queue's URL with the proxy's host and port."""
    return proxy.endpoint + "/" + queue_url.split("/", 3)[3]
