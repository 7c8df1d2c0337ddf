"""Mutable, notification and request tables are validated against each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.mutation import MUTABLE_COLUMNS, NOTIFICATION_COLUMNS
from deltaworks.specs.project import load_catalog

MakeProject = Callable[..., Path]

TEXT = """\
pipeline: shop
description: what contacts do
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event:
  name: {path: kind}
  time: {path: at}
  id: event_id
tables:
  - name: visits
    when: {kind: visit}
    columns:
      - {name: org_id, path: org, type: string}
      - {name: contact, path: contact, type: string}
      - {name: origin_contact, path: contact, type: string}
      - {name: page, path: page, type: string}
      - {name: origin_page, path: page, type: string}
      - {name: region, path: region, type: string}
      - {name: length, path: length, type: long}
      - {name: day, path: day, type: date}
    partition_by: [org_id]
    zorder_by: [day]
    mutable: {id: contact, origin: origin_contact, fields: {page: origin_page}}
  - name: requests
    when: {kind: request}
    columns:
      - {name: org_id, path: org, type: string}
      - {name: op, path: op, type: string}
      - {name: id, path: id, type: string}
      - {name: new_id, path: new_id, type: string}
      - {name: name, path: name, type: string}
      - {name: fields, path: fields, type: "map<string,string>"}
      - {name: seq, path: seq, type: long}
  - name: news
    announces: {table: visits, key: event_id}
    columns:
      - {name: org_id, path: org, type: string}
      - {name: day, path: day, type: date}
    partition_by: [org_id, ingested_date]
mutations:
  requests: requests
  notifications: news
"""


def rejection_of(root: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_catalog("local", root=root)
    return str(caught.value)


def test_the_engine_adds_its_columns_to_mutable_and_announcing_tables(make_project: MakeProject) -> None:
    spec = load_catalog("local", root=make_project(pipeline=TEXT)).pipeline("shop")

    visits, news = spec.table("visits").column_types(), spec.table("news").column_types()
    assert list(visits.items())[-2:] == [("_deleted", "boolean"), ("_mutation", "long")] == list(MUTABLE_COLUMNS)
    assert news == {"org_id": "string", "day": "date", **NOTIFICATION_COLUMNS}
    assert "_mutation" not in spec.table("requests").column_types()


LAST = "  notifications: news\n"
ORG = "- {name: org_id, path: org, type: string}"
DAY = "- {name: day, path: day, type: date}\n    partition_by: [org_id, i"
#: What is replaced, by what, the key at fault, and what is told of it.
CASES = [
    ("origin: origin_contact,", "origin: orign_contact,", "mutable.origin", "did you mean 'origin_contact'"),
    ("id: contact,", "id: length,", "mutable.id", "'length' is long; ids must be of type string"),
    ("origin: origin_contact,", "origin: page,", "mutable", "column 'page' is used twice"),
    (
        "origin: origin_contact,",
        "origin: region,",
        "mutable.origin",
        "give it the same path, type, unit, format and zone (",
    ),
    (
        "{page: origin_page}",
        "{page: length}",
        "mutable.fields.page",
        "give it the same path, type, unit, format and zone (",
    ),
    ("{page: origin_page}", "{pgae: origin_page}", "mutable.fields.pgae", "did you mean 'page'"),
    ("partition_by: [org_id]", "partition_by: [contact]", "mutable.id", "is a partition column"),
    (ORG, ORG.replace("string", "long"), "mutable", "needs a column 'org_id' of type string"),
    ("{table: visits,", "{table: vists,", "announces.table", "did you mean 'visits'"),
    ("key: event_id}", "key: length}", "announces.key", "'length' is not a string column"),
    (DAY, DAY.replace("name: day", "name: dya"), "columns.1.name", "did you mean 'day'"),
    (DAY, DAY.replace("type: date", "type: string"), "columns.1.name", "its type is date"),
    ("    announces:", "    catch_all: true\n    announces:", "catch_all", "and receives no events"),
    ("requests: requests", "requests: request", "mutations.requests", "did you mean 'requests'"),
    ("requests: requests", "requests: visits", "mutations.requests", "is mutable"),
    ("type: long}\n  - name: news", "type: int}\n  - name: news", "mutations.requests", "lacks columns: seq long"),
    (LAST, "  notifications: nws\n", "mutations.notifications", "did you mean 'news'"),
    (LAST, "  names: visits\n", "mutations.names", "declared as another table"),
    (LAST, "  intervals: names\n", "mutations.intervals", "declared as another table"),
    (LAST, "live: [{name: l, reads: visits}]\n", "live.0.reads", "mutable"),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case[2]}-{case[3][:12]}" for case in CASES])
def test_conflicts_are_reported_with_file_line_and_key(
    case: tuple[str, str, str, str], make_project: MakeProject
) -> None:
    old, new, key, expected_text = case
    assert old in TEXT
    text = TEXT.replace(old, new, 1)

    message = rejection_of(make_project(pipeline=text))

    messages = [re.search(r"pipeline\.yaml:(\d+): (?:tables\.\d\.)?(.+?): (.*)", line) for line in message.splitlines()]
    (matched,) = [item for item in messages if item and item[2] == key and expected_text in item[3]]
    assert key.split(".")[-1] in text.splitlines()[int(matched[1]) - 1]


def test_mutable_tables_and_requests_need_each_other(make_project: MakeProject) -> None:
    without = TEXT[: TEXT.index("mutations:")]
    fixed = TEXT.replace("    mutable: {id: contact, origin: origin_contact, fields: {page: origin_page}}\n", "")

    assert "tables.0.mutable: declare `mutations`" in rejection_of(make_project(pipeline=without))
    assert "mutations: no table declares `mutable`" in rejection_of(make_project(pipeline=fixed))


def test_a_gold_table_of_one_key_reads_tables_partitioned_by_it(make_project: MakeProject) -> None:
    gold = """\
gold:
  tables:
    - {name: busy, sql: busy.sql, reads: [visits, READ], partition_by: org_id, affects: same}
"""
    root = make_project(pipeline=TEXT + gold.replace("READ", "names"))
    (root / "include" / "pipelines" / "shop" / "busy.sql").write_text("select 1")

    assert load_catalog("local", root=root).pipeline("shop").gold.tables[0].affects == "same"
    assert "'requests' is not partitioned by 'org_id'" in rejection_of(
        make_project(pipeline=TEXT + gold.replace("READ", "requests"))
    )
    assert "did you mean 'names'?" in rejection_of(make_project(pipeline=TEXT + gold.replace("READ", "nmes")))
