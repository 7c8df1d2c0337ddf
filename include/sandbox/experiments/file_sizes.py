"""How large files of a layout are: percentiles over all, over the largest organisations' and the rest's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandbox.experiments.engagement_rows import Workload, org_id

#: The organisations that count as huge: the first hundredth by size, one at least.
_HUGE_SHARE = 0.01
PERCENTILES = (10, 50, 90, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """Some files: how many, their bytes, and bytes at each of PERCENTILES."""

    orgs: int
    files: int
    bytes: int
    percentiles: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgFiles:
    """The files of a table by the size of their organisation. `by_org` are files and bytes, the largest first."""

    all: FileSizes
    huge: FileSizes
    others: FileSizes
    by_org: tuple[tuple[str, int, int], ...]


def org_files(sizes_by_org: Mapping[str, Sequence[int]], workload: Workload) -> OrgFiles:
    """The sizes of a table's files, grouped by their organisation's rank."""
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
