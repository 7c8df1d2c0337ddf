"""A rollback to a batch loses no row, and states the reason if it is impossible."""

from __future__ import annotations

import pytest

from deltaworks.errors import ContractError
from deltaworks.recovery.restore.rollback_strategy import choose_strategy
from deltaworks.sources.record_source import RecordRange

OLD = RecordRange(stream="shop", partition="0", number=0, first=0, last=9, batch_id=1)
NEW = RecordRange(stream="shop", partition="0", number=0, first=10, last=19, batch_id=5)
REMOVED = {"orders": ("a.parquet",)}


@pytest.mark.parametrize(
    ("missing", "since", "before", "kind"),
    [
        ({}, [], [], "restore"),
        ({"orders": ()}, [], [OLD], "restore"),
        (REMOVED, [], [], "start_over"),
        (REMOVED, [], [OLD], "none"),
        ({}, [NEW], [OLD], "none"),
        (REMOVED, [NEW], [OLD], "none"),
    ],
)
def test_the_first_way_is_taken_that_loses_nothing(
    missing: dict[str, tuple[str, ...]], since: list[RecordRange], before: list[RecordRange], kind: str
) -> None:
    way = choose_strategy(missing_files=missing, expired_after=since, expired_before=before)

    assert way.kind == kind
    assert bool(way.reasons) == (kind != "restore")
    if kind == "restore":
        way.require_restore("shop", 1)
        return
    with pytest.raises(ContractError, match="would lose rows") as refused:
        way.require_restore("shop", 1)
    assert refused.value.condition == "ROLLBACK_LOSES_ROWS"
    assert ("start-over" in refused.value.hint) == (kind == "start_over")


def test_the_reasons_name_what_is_gone() -> None:
    way = choose_strategy(missing_files=REMOVED, expired_after=[NEW], expired_before=[OLD])

    assert way.describe("shop") == (
        "nothing brings all rows back; 1 files of orders are missing, most likely removed by VACUUM; "
        "the source does not have all that landed since: shop/0/10-19; "
        "the source does not have all that landed before: shop/0/0-9"
    )
