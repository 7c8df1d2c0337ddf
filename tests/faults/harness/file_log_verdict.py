"""Judges a file event log: is every object that was announced in it once, and nothing else?"""

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
    """What became of the objects that are owed, by key. `seqs_broken`: the log's numbers have a gap or come twice."""

    lost: Counter[str]
    doubled: Counter[str]
    strange: Counter[str]
    seqs_broken: bool

    @property
    def is_exact(self) -> bool:
        """Every object once, and nothing else."""
        return not (self.lost or self.doubled or self.strange or self.seqs_broken)


def judge_log(lake: StorageSpec, relay: str, owed: Sequence[str]) -> FilesVerdict:
    """Compare a relay's log with the keys it owes."""
    rows = FileEventLog(Lake(lake), relay).read(0, columns=["seq", "key"]).to_pylist()
    seen, wanted = Counter(row["key"] for row in rows), Counter(owed)
    return FilesVerdict(
        lost=wanted - seen,
        doubled=Counter({key: count - wanted[key] for key, count in seen.items() if count > wanted[key] > 0}),
        strange=Counter({key: count for key, count in seen.items() if key not in wanted}),
        seqs_broken=[row["seq"] for row in rows] != list(range(1, len(rows) + 1)),
    )


def proxied_landing(landing: Any, proxy: FaultProxy) -> Any:
    """The same landing side, its queue and buckets reached through a proxy."""
    return dataclasses.replace(landing, endpoint=proxy.endpoint, queue_url=proxied_queue_url(landing.queue_url, proxy))


def proxied_queue_url(queue_url: str, proxy: FaultProxy) -> str:
    """A queue's address, on a proxy."""
    return proxy.endpoint + "/" + queue_url.split("/", 3)[3]
