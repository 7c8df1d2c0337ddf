"""The judge of the soak of erasures sees a row that changed, a file that was left and a certificate that is false."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.faults.harness.people_verdict import LakeFiles, wrong_with_certificates

ANN, BOB = "p1_" + "a" * 26, "p1_" + "b" * 26


def rows(*of: tuple[str, str, int]) -> pa.Table:
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    named = [
        {
            "event_id": event,
            "event_name": "k01",
            "event_time": at,
            "event_date": at.date(),
            "player": player,
            "n": n,
            "_seq": 0,
        }
        for event, player, n in of
    ]
    return pa.Table.from_pylist([{**row, "_position": 0, "_batch_id": 0, "raw": None} for row in named])


@pytest.fixture
def files(tmp_path: Path) -> LakeFiles:
    """Two rows of Ann and one of Bob, written as files, and one that came through a stream."""
    made = rows(("b1", ANN, 1), ("b2", BOB, 2), ("b3", ANN, 3), ("e1", BOB, 4))
    made = made.set_column(made.schema.get_field_index("raw"), "raw", pa.nulls(4, pa.string()))
    write_deltalake(str(tmp_path / "k01"), made, partition_by=["event_date"])
    return LakeFiles(tmp_path)


def purge(folder: Path) -> None:
    DeltaTable(str(folder / "k01")).delete(f"player = '{ANN}'")


def test_rows_of_others_are_the_same_behind_a_purge_and_hers_are_left_on_the_disk(
    files: LakeFiles, tmp_path: Path
) -> None:
    before = files.remaining_rows("k01", [ANN])
    assert (before.rows, dict(files.rows_of("k01", [ANN]))) == (1, {ANN: 2})
    old = files.files("k01")
    purge(tmp_path)
    assert files.remaining_rows("k01", [ANN]) == before
    assert files.rows_of("k01", [ANN]) == {}
    assert files.rows_with_tokens("k01", [ANN]) == 2, "in the file of the version before"
    for path in old:
        Path(path).unlink()
    assert files.rows_with_tokens("k01", [ANN]) == 0
    assert files.landed("k01") == {"e1": 1}


def test_a_row_of_somebody_else_that_changed_is_seen(files: LakeFiles, tmp_path: Path) -> None:
    before = files.remaining_rows("k01", [ANN])
    DeltaTable(str(tmp_path / "k01")).update(updates={"n": "7"}, predicate="event_id = 'b2'")
    after = files.remaining_rows("k01", [ANN])
    assert (after.rows, after != before) == (before.rows, True)


def certificate(**changes: Any) -> dict[str, Any]:
    table = {"table": "k01", "rows_before": 3, "rows_after": 1, "erased_before": 2, "erased_after": 0, "person_rows": 2}
    said = {"number": 1, "previous_sha256": "", "scan": {"hits": 0, "hits_before": 4}}
    return {**said, "tables": [{**table, "other_rows_before": 1, "other_rows_after": 1, **changes}]}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, ""),
        ({"other_rows_after": 0}, "do not add up"),
        ({"rows_after": 2}, "do not add up"),
        ({"erased_after": 1, "rows_after": 2}, "do not add up"),
        ({"person_rows": 1}, "1 rows of k01"),
        ({"person_rows": 5}, "5 rows of k01"),
    ],
)
def test_a_certificate_that_is_not_true_is_seen(tmp_path: Path, changes: dict[str, Any], wrong: str) -> None:
    (tmp_path / "e1.json").write_text(json.dumps(certificate(**changes)))
    (*said,) = wrong_with_certificates(tmp_path, ["e1"], table="k01", at_least={"e1": 2}, at_most={"e1": 4})
    assert (len(said), all(wrong in one for one in said)) == (1 if wrong else 0, True)


def test_a_missing_certificate_and_a_broken_chain_are_seen(tmp_path: Path) -> None:
    first = json.dumps(certificate()).encode()
    (tmp_path / "e1.json").write_bytes(first)
    second = certificate() | {"number": 2, "previous_sha256": hashlib.sha256(first).hexdigest()}
    (tmp_path / "e2.json").write_text(json.dumps(second))
    bounds = {"e1": 2, "e2": 2, "e3": 2}

    def wrong(*requests: str) -> list[str]:
        return wrong_with_certificates(tmp_path, requests, table="k01", at_least=bounds, at_most=bounds)

    assert wrong("e1", "e2") == []
    assert wrong("e1", "e2", "e3") == ["1 requests have no certificate"]
    (tmp_path / "e1.json").write_bytes(first + b" ")
    assert wrong("e1", "e2") == ["certificate 2 does not follow the one before it"]
