"""Mutable, keyed, notification and request tables are validated against each other and their histories."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.mutation import MUTABLE_COLUMNS, NOTIFICATION_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from deltaworks.testing import declare_pipeline, declare_table

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


def spec(keyed: dict[str, Any] | None, **others: Any) -> PipelineSpec:
    columns = {"symbol": "string", "day": "date", "version": "long", "price": "decimal(12,4)", "weight": "double"}
    columns |= {"tags": "array<string>", "active": "boolean", "op": "string"}
    table: dict[str, Any] = declare_table("ticks", *(f"{name} {kind}" for name, kind in columns.items()))
    declared = declare_pipeline(
        table if keyed is None else {**table, "keyed": keyed},
        pipeline="market",
        event={"name": {"constant": "tick"}, "time": {"path": "time"}},
    )
    return PipelineSpec.model_validate(declared | others)


def test_the_short_form_is_by_key_and_event_time() -> None:
    (keyed,) = spec({"by": "symbol"}).keyed_tables

    assert (keyed.name, keyed.history, keyed.by, keyed.newest_by) == (
        "latest_ticks",
        "ticks",
        ("symbol",),
        ("event_time",),
    )
    assert keyed.sort_columns == ("event_time", "_seq", "_position")
    assert "_deleted" not in keyed.types


def test_tables_with_deletions_have_a_deletion_column() -> None:
    (keyed,) = spec({"by": ["symbol", "day"], "newest_by": "version", "deleted_when": {"op": "d"}}).keyed_tables

    assert list(keyed.types)[-1] == "_deleted"
    assert keyed.deleted_when == {"op": ("d",)}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"by": []}, "at least 1 item"),
    ({"newest_by": "version"}, "Field required"),
    ({"by": "symbl"}, "there is no column 'symbl' in this table; did you mean 'symbol'"),
    ({"by": "weight"}, "'weight' is double; it must be string, int, long, boolean, date, timestamp or a decimal"),
    ({"by": ["symbol", "symbol"]}, "'symbol' is named twice"),
    ({"by": "symbol", "newest_by": "tags"}, "'tags' is array<string>"),
    ({"by": "symbol", "newest_by": "active"}, "'active' is boolean"),
    ({"by": "symbol", "deleted_when": {"price": 1}}, "'price' is decimal(12,4)"),
    ({"by": "symbol", "deleted_when": {"version": "d"}}, "'version' is long, and 'd' is not"),
    ({"by": "symbol", "deleted_when": {"version": True}}, "'version' is long, and True is not"),
    ({"by": "symbol", "partition_by": ["day"]}, "'day' is not in `by`: a key would move between partitions"),
    ({"by": "price", "partition_by": ["price"]}, "which is not a partition type"),
    ({"by": "symbol", "table": "ticks"}, "table ticks is declared twice"),
    ({"by": "symbol", "table": "quarantine"}, "the name 'quarantine' is reserved"),
]


@pytest.mark.parametrize(("keyed", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_an_error_has_its_key_path(keyed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as rejection:
        spec(keyed)

    assert message in str(rejection.value)


def test_gold_reads_a_keyed_table_and_a_live_table_does_not() -> None:
    gold = {"name": "sums", "sql": "s.sql", "reads": ["latest_ticks"], "partition_by": "symbol", "affects": "same"}
    parted = {"by": ["symbol"], "partition_by": ["symbol"]}

    assert spec(parted, gold={"tables": [gold]}).gold.tables[0].reads == ("latest_ticks",)
    with pytest.raises(ValidationError, match="is not partitioned by"):
        spec({"by": ["symbol"]}, gold={"tables": [gold]})
    with pytest.raises(ValidationError, match="reads unknown table"):
        spec(parted, live=[{"name": "counts", "reads": "latest_ticks"}])


@pytest.mark.parametrize(
    ("before", "after", "field", "effect"),
    [
        (None, {"by": "symbol"}, "keyed", Effect.RESTART),
        ({"by": "symbol"}, None, "keyed", Effect.RESTART),
        ({"by": "symbol"}, {"by": ["symbol", "day"]}, "keyed.by", Effect.RESTART),
        ({"by": "symbol"}, {"by": "symbol", "newest_by": "version"}, "keyed.newest_by", Effect.RESTART),
        ({"by": "symbol"}, {"by": "symbol", "deleted_when": {"op": "d"}}, "keyed.deleted_when", Effect.RESTART),
        ({"by": "symbol"}, {"by": "symbol", "table": "prices"}, "keyed.table", Effect.RESTART),
        (
            {"by": "symbol"},
            {"by": "symbol", "partition_by": ["symbol"]},
            "keyed.partition_by",
            Effect.NEW_GENERATION,
        ),
    ],
)
def test_a_change_of_a_keyed_table_rebuilds_it(
    before: dict[str, Any] | None, after: dict[str, Any] | None, field: str, effect: Effect
) -> None:
    (change,) = classify_changes(spec(before), spec(after))

    assert (change.field, change.effect) == (f"tables.ticks.{field}", effect)
    assert "ticks" in change.advice
