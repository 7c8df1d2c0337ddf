"""Request files: order, every error with its line, and small ones that resolve without Spark."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.mutations.local_resolve import resolve_entities_locally
from deltaworks.mutations.request_file import read_request_file
from tests.commands import output_of
from tests.processes import run_process


def written(folder: Path, text: str) -> Path:
    path = folder / "requests.csv"
    path.write_text(text, encoding="utf-8")
    return path


def moments(path: Path) -> list[tuple[str, int]]:
    """Every request by its old id, with the place of its moment."""
    return [(row.id, row.time) for row in read_request_file(path).requests]


def test_a_file_of_three_columns_has_renames_simultaneous_where_the_time_is_one(tmp_path: Path) -> None:
    file = read_request_file(written(tmp_path, "ts,old_id,new_id\n20,b,c\n10,a,b\n10,x,y\n"))

    rows = file.requests
    assert [(row.op, row.org_id, row.id, row.new_id, row.fields) for row in rows] == [
        ("rename", "", "b", "c", None),
        ("rename", "", "a", "b", None),
        ("rename", "", "x", "y", None),
    ]
    assert [file.original_time(row.time) for row in rows] == ["20", "10", "10"]
    assert rows[1].time == rows[2].time < rows[0].time
    assert rows[0].seq < rows[1].seq < rows[2].seq, "without a column for it, the order of the file"


def test_commits_of_one_time_come_one_after_the_other_by_their_least_seq(tmp_path: Path) -> None:
    text = "ts,old_id,new_id,commit,seq\n5,a,b,late,9\n5,b,c,early,3\n5,c,d,late,1\n4,z,y,first,7\n"

    assert moments(written(tmp_path, text)) == [("a", 1), ("b", 2), ("c", 1), ("z", 0)]


def test_times_are_compared_as_times_however_they_are_written(tmp_path: Path) -> None:
    times = (
        "2026-01-01T00:00:00Z",
        "1767225600.5",
        "1767225600",
        "2026-01-01T02:00:00+02:00",
        "2026-01-01 00:00:00.25",
    )
    text = "ts,old_id,new_id\n" + "".join(f"{time},{number},x\n" for number, time in enumerate(times))

    assert moments(written(tmp_path, text)) == [("0", 0), ("1", 2), ("2", 0), ("3", 0), ("4", 1)]


def test_every_operation_is_read_with_what_belongs_to_it(tmp_path: Path) -> None:
    text = (
        "ts,old_id,new_id,org_id,op,fields,note\n"
        '1,a,b,o,merge,,x\n2,b,,o,update,"{""stage"": ""won"", ""size"": null}",\n3,b,,o,delete,,\n4,b,,o,undelete,,\n'
    )

    file = read_request_file(written(tmp_path, text))

    rows = file.requests
    assert [(row.op, row.new_id, row.fields) for row in rows] == [
        ("merge", "b", None),
        ("update", None, {"stage": "won", "size": None}),
        ("delete", None, None),
        ("undelete", None, None),
    ]
    assert file.ignored_columns == ("note",)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "line 1: there is no column ts, old_id, new_id"),
        ("ts,old,new_id\n", "line 1: there is no column old_id"),
        ("ts,old_id,new_id,ts\n", "line 1: column ts is there more than once"),
        ("ts,old_id,new_id\n1,a,b\n2,a\n", "line 3: 2 values for 3 columns"),
        ("ts,old_id,new_id\nsoon,a,b\n", "line 2: ts 'soon' is neither a number of seconds nor ISO 8601"),
        ("ts,old_id,new_id\nNaN,a,b\n", "line 2: ts 'NaN' is no time"),
        ("ts,old_id,new_id\n1,,b\n", "line 2: old_id is empty"),
        ("ts,old_id,new_id\n1,a,\n", "line 2: new_id is empty"),
        ("ts,old_id,new_id,op\n1,a,b,move\n", "line 2: op 'move' is none of rename, merge"),
        ("ts,old_id,new_id,op\n1,a,b,delete\n", "line 2: delete takes no new_id"),
        ("ts,old_id,new_id,fields\n1,a,b,{}\n", "line 2: rename takes no fields"),
        ("ts,old_id,new_id,op,fields\n1,a,,update,\n", 'line 2: an update sets fields, such as {"stage": "won"}'),
        ("ts,old_id,new_id,op,fields\n1,a,,update,{x}\n", "line 2: fields is no JSON"),
        (
            'ts,old_id,new_id,op,fields\n1,a,,update,"{""x"": 1}"\n',
            "line 2: a value of fields is neither text nor null",
        ),
        ("ts,old_id,new_id,seq\n1,a,b,first\n", "line 2: seq 'first' is no whole number"),
        (f"ts,old_id,new_id,seq\n1,a,b,{2**63}\n", "does not fit 64 bits"),
        ("ts,old_id,new_id,commit\n1,a,b,k\n2,c,d,k\n", "line 3: commit k has another ts on line 2: 1"),
        ('ts,old_id,new_id\n1,"a\nb",c\n2,"a"x,b\n', "line 4: this is no CSV"),
        ("ts,old_id,new_id\n1,a,\n,a,b\n", "line 2: new_id is empty; line 3: ts '' is neither"),
    ],
)
def test_an_error_is_reported_with_its_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(what)) as caught:
        read_request_file(written(tmp_path, text))

    assert caught.value.condition == "MUTATION_FILE_INVALID"
    assert "ts, old_id, new_id" in caught.value.hint


def test_the_first_ten_errors_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 11: old_id is empty; and 5 more"):
        read_request_file(written(tmp_path, "ts,old_id,new_id\n" + "1,,b\n" * 15))


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"ts,old_id,new_id\n1,\xe9,b\n")

    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "latin.csv"):
        with pytest.raises(ConfigError) as caught:
            read_request_file(path)
        assert caught.value.condition == "MUTATION_FILE_UNREADABLE"


def test_a_file_without_requests_is_valid(tmp_path: Path) -> None:
    file = read_request_file(written(tmp_path, "\ufeffts,old_id,new_id\n"))

    assert file.requests == ()
    assert file.original_time(None) is None


def test_entities_have_first_and_final_ids_and_components(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(
        "ts,org_id,op,old_id,new_id,fields\n"
        "10,used again,rename,a,b,\n20,used again,rename,a,c,\n30,used again,rename,b,d,\n"
        "10,merged,merge,a,b,\n10,merged later,rename,x,b,\n20,merged later,merge,a,b,\n"
        '10,deleted,rename,a,b,\n20,deleted,delete,b,,\n30,deleted,update,b,,"{""stage"": ""won""}"\n'
        "10,back,delete,a,,\n20,back,undelete,a,,\n30,back,rename,a,b,\n"
    )

    found = [tuple(row.values()) for row in resolve_entities_locally(read_request_file(path).requests)]

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
import sys
from deltaworks.cli import main
sys.argv = ["deltaworks", "mutations", "resolve", {str(path)!r}, *{words!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
assert not {{"pyspark", "pyarrow", "pandas"}} & set(sys.modules)
"""

    printed = run_process([sys.executable, "-c", program], check=True).stdout.splitlines()

    assert any("a" in line and "c" in line for line in printed)
    assert output_of("mutations", "resolve", str(path), *words) == "\n".join(printed) + "\n"
