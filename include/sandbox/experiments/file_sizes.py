"""Computes percentiles of a table's file sizes: of all files, of the largest organisations' and of all others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandbox.experiments.engagement_rows import Workload, org_id

#: Share of organisations that count as huge, the largest ones; at least one organisation.
_HUGE_SHARE = 0.01
PERCENTILES = (10, 50, 90, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """Number of organisations and files, their bytes, and the file size at each of PERCENTILES."""

    orgs: int
    files: int
    bytes: int
    percentiles: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgFiles:
    """File sizes of a table by size of organisation. `by_org` has id, files and bytes of each, largest organisation
    first.
    """

    all: FileSizes
    huge: FileSizes
    others: FileSizes
    by_org: tuple[tuple[str, int, int], ...]


def org_files(sizes_by_org: Mapping[str, Sequence[int]], workload: Workload) -> OrgFiles:
    """Groups the file sizes of a table by their organisation's size."""
    huge_orgs = {org_id(rank) for rank in range(max(1, round(workload.orgs * _HUGE_SHARE)))}
    huge = {org: sizes for org, sizes in sizes_by_org.items() if org in huge_orgs}
    others = {org: sizes for org, sizes in sizes_by_org.items() if org not in huge_orgs}
    return OrgFiles(
        all=_sizes(sizes_by_org),
        huge=_sizes(huge),
        others=_sizes(others),
        by_org=tuple((org, len(sizes_by_org[org]), sum(sizes_by_org[org])) for org in sorted(sizes_by_org)),
    )


def _sizes(by_org: Mapping[str, Sequence[int]]) -> FileSizes:
    ordered = sorted(size for sizes in by_org.values() for size in sizes)
    at = {point: ordered[max(0, -(-point * len(ordered) // 100) - 1)] if ordered else 0 for point in PERCENTILES}
    return FileSizes(orgs=len(by_org), files=len(ordered), bytes=sum(ordered), percentiles=at)
