"""Small request files resolve without Spark as their rows replay, in less than a second."""

from __future__ import annotations

import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from deltaworks.mutations.request_file import read_request_file, resolve_small_entities, resolve_small_intervals
from tests.commands import output_of
from tests.processes import run_process
from tests.spark.mutations.cases import Log, logs
from tests.unit.mutations.examples import EXAMPLES
from tests.unit.mutations.replay_oracle import Row, replay

SCHEMA = pa.schema(
    {
        "org_id": pa.string(),
        "op": pa.string(),
        "id": pa.string(),
        "new_id": pa.string(),
        "fields": pa.map_(pa.string(), pa.string()),
        "seq": pa.int64(),
        "time": pa.timestamp("us", tz="UTC"),
    }
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(time: float) -> datetime:
    return START + timedelta(seconds=time)


def table(*several: Log) -> pa.Table:
    """Returns the requests of several logs, one organisation each."""
    rows = [
        {
            "org_id": str(org),
            "op": each.op,
            "id": each.id,
            "new_id": each.new_id,
            "fields": list(each.fields.items()) if each.op == "update" else None,
            "seq": each.seq,
            "time": at(each.time),
        }
        for org, log in enumerate(several)
        for each in log
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def outcomes(several: list[Log], rows: dict[int, list[Row]]) -> dict[tuple[int, str, float], Any]:
    """Returns what intervals say of each row: id, whether it is deleted, fields and hops."""
    by_id: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for interval in resolve_small_intervals(table(*several)):
        by_id[interval["org_id"], interval["id"]].append(interval)
    found = {}
    for org, probes in rows.items():
        for row in probes:
            met = [
                one
                for one in by_id[str(org), row.origin]
                if (one["valid_from"] is None or one["valid_from"] <= at(row.time))
                and (one["valid_to"] is None or at(row.time) < one["valid_to"])
            ]
            assert len(met) <= 1
            (one,) = met or [{"final_id": row.origin, "deleted": False, "fields": {}, "hops": 0}]
            found[org, row.origin, row.time] = one["final_id"], one["deleted"], one["fields"], one["hops"]
    return found


@given(logs(), logs())
def test_generated_logs_resolve_as_they_replay(first: Log, second: Log) -> None:
    several = [first, second]
    probes = {
        org: [Row(origin=name, time=half / 2) for name in "abcde" for half in range(19)] for org in range(len(several))
    }

    found = outcomes(several, probes)

    for org, log in enumerate(several):
        for row in replay(probes[org], log):
            assert found[org, row.origin, row.time] == (row.id, row.deleted, row.fields, row.hops)


def test_every_example_of_the_documents_resolves_as_stated() -> None:
    several = [example.requests for example in EXAMPLES]
    probes = {
        org: [Row(origin=origin, time=time) for origin, time in example.rows] for org, example in enumerate(EXAMPLES)
    }

    found = outcomes(several, probes)

    for org, example in enumerate(EXAMPLES):
        for (origin, time), outcome in example.rows.items():
            final_id, deleted, fields, _ = found[org, origin, time]
            assert (None if deleted else final_id, fields) == (outcome.id, outcome.fields), example.name


def test_entities_have_first_and_final_ids_and_components(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(
        "ts,org_id,op,old_id,new_id,fields\n"
        "10,used again,rename,a,b,\n20,used again,rename,a,c,\n30,used again,rename,b,d,\n"
        "10,merged,merge,a,b,\n10,merged later,rename,x,b,\n20,merged later,merge,a,b,\n"
        '10,deleted,rename,a,b,\n20,deleted,delete,b,,\n30,deleted,update,b,,"{""stage"": ""won""}"\n'
        "10,back,delete,a,,\n20,back,undelete,a,,\n30,back,rename,a,b,\n"
    )

    found = [tuple(row.values()) for row in resolve_small_entities(read_request_file(path).requests)]

    assert found[:5] == [
        ("back", "a", "b", 3, "a", 2),
        ("deleted", "a", None, 2, "a", 2),
        ("deleted", "b", "b", 0, "a", 2),
        ("merged", "a", "b", 1, "a", 2),
        ("merged", "b", "b", 0, "a", 2),
    ]


@pytest.mark.parametrize("words", [(), ("--all",), ("--all", "--json")])
def test_a_small_file_starts_no_jvm_and_imports_no_spark(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("ts,old_id,new_id\n1,a,b\n2,b,c\n3,x,y\n")
    program = f"""
import resource, sys
from deltaworks.cli import main
sys.argv = ["deltaworks", "mutations", "resolve", {str(path)!r}, *{words!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
assert "pyspark" not in sys.modules
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""

    *printed, seconds = run_process([sys.executable, "-c", program], check=True).stdout.splitlines()

    assert any("a" in line and "c" in line for line in printed)
    # Processor time, which does not depend on other processes as much as elapsed time.
    assert float(seconds) < 1.5
    assert output_of("mutations", "resolve", str(path), *words) == "\n".join(printed) + "\n"
