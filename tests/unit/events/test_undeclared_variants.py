"""Undeclared fields as variants: what every reader and writer of a table makes of the column `_rest`."""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.records.prepared import PreparedTable
from deltaworks.engine.table_set import TableSet
from deltaworks.errors import ContractError
from deltaworks.events.evolution import EvolvedColumn, add_columns, evolved_columns, to_records
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys
from deltaworks.events.table_columns import conform_prepared_table
from deltaworks.privacy.erasure.purge_table import TablePurger, erasure_step
from deltaworks.privacy.erasure.scan import scan_object
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.recovery.reprocess.replace_rows import DirectReplacer
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import VARIANT_TYPE
from deltaworks.tables.commit import Step
from deltaworks.tables.compaction import compact_partitions
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.features import reasons_against_compacting, reasons_against_rewriting, reasons_to_use_spark
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, state_at
from deltaworks.tables.log_writer import write_commit
from deltaworks.tables.query import connect
from deltaworks.tables.table_swap import recreate_table
from deltaworks.tables.vacuum_candidates import reasons_against_vacuum
from deltaworks.tables.variant import with_marked_variants
from deltaworks.testing import (
    batch_metadata,
    catalog_of,
    declare_columns,
    declare_pipeline,
    declare_table,
    local_lake,
    payloads_of,
    write_files,
)
from tests.examples import examples
from tests.unit.engine.batch_records import prepared_batch
from tests.unit.privacy.erasure.test_purge_table import token
from tests.unit.test_reading import vector_of

KEY = paths.table("shop", "orders")


def declared(*columns: str, evolve: str = "rescue", keep_rest: str = "variant", **sections: Any) -> PipelineSpec:
    table = declare_table("orders", "level int from params.level", *columns, evolve=evolve, keep_rest=keep_rest)
    return PipelineSpec.model_validate(declare_pipeline(table, **sections))


def event(number: int, **fields: Any) -> str:
    return json.dumps({"name": "order", "time": 1_700_000_000 + number, "n": number} | fields)


class Shop:
    """A lake with the table `orders`, to which events are added a commit at a time."""

    def __init__(self, root: Path, spec: PipelineSpec | None = None) -> None:
        self.root, self.spec = root, spec or declared()
        self.lake = local_lake(root / "lake")
        self.objects = open_objects(self.lake.storage)
        self.commits = 0
        self.open()

    def open(self) -> DeltaTable:
        tables = TableSet(Lake(self.lake.storage), self.spec)
        tables.open()
        assert not tables.problems
        return tables.handles["orders"]

    def add(self, *events: str) -> None:
        self.commits += 1
        content = "\n".join(events).encode()
        table = self.open()
        evolved = {"orders": evolved_columns(table, self.spec.table("orders"))}
        for name, rows in Parser(self.spec, evolved=evolved).parse(payloads_of(content), batch_metadata(self.commits)):
            assert name == "orders", rows.to_pylist()
            self.lake.append(table, KEY, rows, step=Step("tests", self.commits), user_metadata="{}")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        connection, _ = connect(catalog_of(self.root, self.spec), statement=sql)
        with connection:
            return connection.execute(sql).fetchall()

    def rest(self) -> dict[int, Any]:
        """Returns the undeclared fields of each event, by its number."""
        rows = self.ask("SELECT _rest.n::INT, _rest FROM shop.orders")
        return {number: {name: value for name, value in rest.items() if name != "n"} for number, rest in rows}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


class TestDeclaration:
    def test_it_is_a_column_of_the_table_in_place_of_the_text(self) -> None:
        assert declared().table("orders").column_types()["_rest"] == "variant"
        assert "_rescued" not in declared().table("orders").column_types()
        assert "_rest" not in declared(keep_rest="text").table("orders").column_types()

    @pytest.mark.parametrize("evolve", ["ignore", "fail"])
    def test_a_table_that_stores_no_undeclared_field_refuses_it(self, evolve: str) -> None:
        with pytest.raises(ValueError, match="keep_rest: variant needs evolve: rescue or add_columns"):
            declared(evolve=evolve)

    @pytest.mark.parametrize("kind", ["variant", "VARIANT", "array<variant>", "struct<a: variant>"])
    def test_a_column_cannot_be_declared_as_one(self, kind: str) -> None:
        column = {"name": "any", "path": "any", "type": kind}
        table = declare_table("orders", columns=[*declare_columns("level int"), column])

        with pytest.raises(ValueError, match=r"only undeclared fields can be a variant|unknown type 'variant'"):
            PipelineSpec.model_validate(declare_pipeline(table))

    @pytest.mark.parametrize(
        "options",
        [{"partition_by": ["_rest"]}, {"zorder_by": ["_rest"]}, {"keyed": {"by": ["_rest"]}}],
    )
    def test_rows_cannot_be_laid_out_or_identified_by_it(self, options: dict[str, Any]) -> None:
        table = declare_table("orders", "level int", evolve="rescue", keep_rest="variant", **options)

        with pytest.raises(ValueError, match="_rest"):
            PipelineSpec.model_validate(declare_pipeline(table))

    def test_a_live_table_cannot_group_by_it(self) -> None:
        with pytest.raises(ValueError, match="_rest is a variant; declare a column for the field to group by"):
            declared(live=[{"name": "counts", "reads": "orders", "group_by": ["_rest"]}])


# A number of more than 64 bits is exact in both.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3),
    max_leaves=8,
)
LINES = st.lists(st.dictionaries(st.sampled_from(["params", "a.b", "x y", "ä", "top"]), VALUES, max_size=4), max_size=5)


@settings(max_examples=examples(100), deadline=None)
@given(LINES)
def test_the_variant_has_what_the_text_has(lines: list[dict[str, Any]]) -> None:
    content = "\n".join(event(number, **line) for number, line in enumerate(lines)).encode()

    def parsed(keep_rest: str) -> list[tuple[Any, Any]]:
        column = "_rescued" if keep_rest == "text" else "_rest"
        parser = Parser(declared("ok string from ok", keep_rest=keep_rest))
        rest: list[tuple[Any, Any]] = []
        for name, rows in parser.parse(payloads_of(content), batch_metadata()):
            if name == "orders":
                rest += zip(rows.column("_position").to_pylist(), texts(rows.column(column)), strict=True)
        return rest

    assert parsed("variant") == parsed("text")


def texts(column: pa.ChunkedArray) -> list[Any]:
    """Returns undeclared fields with numbers that are equal if their values are."""
    if column.type == VARIANT_TYPE:
        schema = pa.schema([pa.field("v", VARIANT_TYPE)])
        with duckdb_session() as connection:
            from deltaworks.tables.variant import delta_schema

            connection.register("rows", pa.table([column], schema=with_marked_variants(schema, delta_schema(schema))))
            found = [text for (text,) in connection.execute("SELECT v::JSON::VARCHAR FROM rows").fetchall()]
    else:
        found = column.to_pylist()
    return [None if text is None else json.loads(text, parse_int=Decimal, parse_float=Decimal) for text in found]


@pytest.mark.parametrize(("levels", "stored"), [(100, None), (700, "[" * 700 + "]" * 700), (5_000, None)])
def test_fields_nested_too_deeply_are_texts(shop: Shop, levels: int, stored: str | None) -> None:
    """A field that the parser itself refuses is in quarantine."""
    text = event(1, deep=0).replace('"deep": 0', '"deep": ' + "[" * levels + "]" * levels)
    parts = Parser(shop.spec).parse(payloads_of(text), batch_metadata())

    for name, rows in parts:
        if name == "orders":
            ((rest,),) = [texts(rows.column("_rest"))]
            assert rest == {"n": 1, "deep": stored if stored is not None else json.loads("[" * levels + "]" * levels)}
        else:
            assert levels > 700


class TestReading:
    def test_fields_are_read_before_they_are_declared(self, shop: Shop) -> None:
        shop.add(event(1, params={"level": 1, "color": "red", "price": 1.5}, tags=["a", "b"]), event(2))

        assert shop.ask(
            "SELECT level, _rest.params.color::VARCHAR, _rest.params.price::DOUBLE + 1, _rest.tags[2], "
            "_rest.nothing FROM shop.orders ORDER BY event_time"
        ) == [(1, "red", 2.5, "b", None), (None, None, None, None, None)]

    @pytest.mark.parametrize(
        ("condition", "numbers"),
        [
            ("_rest.color = 'red'", [1, 3]),
            ("_rest.color IN ('blue', 'green')", [2]),
            ("_rest.color::VARCHAR LIKE 'r%'", [1, 3]),
            ("_rest.color IS NULL", [4]),
            ("_rest.color = 'red' AND level = 3", [3]),
            ("_rest IS NULL", []),
            ("_rest IS NOT NULL", [1, 2, 3, 4]),
            ("_rest.level.deep.missing = 1", []),
            ("event_name = 'order' AND _rest.n::INT > 2", [3, 4]),
        ],
    )
    def test_rows_are_filtered_by_its_fields(self, shop: Shop, condition: str, numbers: list[int]) -> None:
        shop.add(event(1, color="red"), event(2, color="blue"))
        shop.add(event(3, color="red", params={"level": 3}), event(4))

        assert shop.ask(f"SELECT _rest.n::INT FROM shop.orders WHERE {condition} ORDER BY ALL") == [
            (number,) for number in numbers
        ]

    def test_rows_are_grouped_by_it_and_by_its_fields(self, shop: Shop) -> None:
        shop.add(event(1, color="red"), event(1, color="red"), event(1, color=None))

        assert shop.ask("SELECT _rest.color::VARCHAR, count(*) FROM shop.orders GROUP BY ALL ORDER BY 2") == [
            (None, 1),
            ("red", 2),
        ]
        assert shop.ask("SELECT count(DISTINCT _rest) FROM shop.orders") == [(2,)]

    def test_a_declared_view_reads_its_fields(self, tmp_path: Path) -> None:
        view = {"name": "colors", "sql": "colors.sql", "reads": ["orders"], "description": "colors of orders"}
        shop = Shop(tmp_path, declared(views=[view]))
        colors = {"colors.sql": "SELECT _rest.color::VARCHAR AS color FROM orders"}
        write_files(catalog_of(tmp_path, shop.spec).folder("shop"), colors)
        shop.add(event(1, color="red"))

        assert shop.ask("SELECT * FROM shop.colors WHERE color = 'red'") == [("red",)]

    def test_an_event_without_undeclared_fields_has_null(self, tmp_path: Path) -> None:
        shop = Shop(tmp_path, declared("n int from n"))

        shop.add(event(1), event(2, x=None), event(3, x=1))

        assert shop.ask("SELECT n, _rest IS NULL FROM shop.orders ORDER BY n") == [(1, True), (2, True), (3, False)]

    def test_a_table_with_marked_rows_is_read(self, shop: Shop) -> None:
        shop.add(event(1, color="red"), event(2, color="blue"), event(3, color="green"))
        table = shop.open()
        features = ["deletionVectors", "variantType"]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
        (added,) = state_at(shop.lake, shop.objects, KEY, table.version()).files.values()
        removed = {"path": added["path"], "deletionTimestamp": 1_700_000_000_000, "dataChange": True}
        actions: list[Action] = [
            {"protocol": protocol},
            {"remove": removed},
            {"add": {**added, "dataChange": True, "deletionVector": vector_of(1)}},
        ]
        assert write_commit(shop.objects, KEY, table.version() + 1, actions)

        assert shop.rest() == {1: {"color": "red"}, 3: {"color": "green"}}


class TestTable:
    def test_nothing_asks_for_spark(self, shop: Shop) -> None:
        table = shop.open()

        assert table.protocol().writer_features == ["variantType"]
        for reasons in (
            reasons_to_use_spark,
            reasons_against_rewriting,
            reasons_against_compacting,
            reasons_against_vacuum,
        ):
            assert reasons(table) == []

    def test_a_table_with_texts_gets_the_column_and_keeps_its_texts(self, tmp_path: Path) -> None:
        shop = Shop(tmp_path, declared(keep_rest="text"))
        shop.add(event(1, color="red"))
        shop.spec = declared()
        shop.add(event(2, color="blue"))

        assert shop.ask("SELECT _rescued, _rest.color::VARCHAR FROM shop.orders ORDER BY event_time") == [
            ('{"n":1,"color":"red"}', None),
            (None, "blue"),
        ]

    def test_a_field_that_is_declared_later_moves_to_its_column(self, shop: Shop) -> None:
        shop.add(event(1, color="red"))
        shop.spec = declared("color string from color")
        shop.add(event(2, color="blue"))

        assert shop.ask("SELECT color, _rest.color::VARCHAR FROM shop.orders ORDER BY event_time") == [
            (None, "red"),
            ("blue", None),
        ]

    def test_values_of_other_types_than_an_added_column_are_in_it(self, tmp_path: Path) -> None:
        shop = Shop(tmp_path, declared(evolve="add_columns"))
        added = to_records([EvolvedColumn("color", ("color",), "string")])
        add_columns(shop.open(), added, owner=None, user_metadata="{}")

        shop.add(event(1, color="red"), event(2, color=7, size="m"))

        assert shop.ask("SELECT color, _rest.color::INT FROM shop.orders ORDER BY event_time") == [
            ("red", None),
            (None, 7),
        ]
        assert shop.rest() == {1: {}, 2: {"color": 7, "size": "m"}}

    def test_files_of_a_prepared_batch_are_committed_as_they_are(self, shop: Shop) -> None:
        ((_, rows),) = Parser(shop.spec).parse(payloads_of(event(1, color="red")), batch_metadata())
        file = write_file(
            shop.lake.filesystem, arrow_path(shop.lake.storage, KEY), rows, partition={"event_date": "2023-11-14"}
        )
        prepared = PreparedTable(table="orders", writer="fan_out", rows=1, files=(dataclasses.asdict(file),))
        batch = prepared_batch(1, tables=(prepared,))

        assert conform_prepared_table(shop.lake, shop.open(), batch, prepared) == prepared

    def test_a_prepared_variant_for_a_table_without_the_column_is_refused(self, tmp_path: Path) -> None:
        shop = Shop(tmp_path, declared(keep_rest="text"))
        ((_, rows),) = Parser(declared()).parse(payloads_of(event(1, color="red")), batch_metadata())
        file = write_file(
            shop.lake.filesystem, arrow_path(shop.lake.storage, KEY), rows, partition={"event_date": "2023-11-14"}
        )
        prepared = PreparedTable(table="orders", writer="fan_out", rows=1, files=(dataclasses.asdict(file),))

        with pytest.raises(ContractError, match="the table has no column _rest"):
            conform_prepared_table(shop.lake, shop.open(), prepared_batch(1, tables=(prepared,)), prepared)

    def test_it_is_recreated_without_spark(self, shop: Shop) -> None:
        shop.add(event(1, color="red"))
        table = shop.open()
        columns = shop.spec.table("orders").column_types()

        recreate_table(
            table,
            columns,
            ["event_date"],
            step=Step("a", 1),
            owner=Step("b", 1),
            user_metadata="{}",
            spark=None,
            uri="",
        )
        shop.add(event(2, color="blue"))

        assert shop.rest() == {2: {"color": "blue"}}

    def test_small_files_are_merged(self, shop: Shop) -> None:
        shop.add(event(1, color="red"))
        shop.add(event(2, size=[1, {"x": 1.5}]), event(3))
        before = shop.rest()

        outcome = compact_partitions(
            shop.lake,
            shop.objects,
            KEY,
            [(("event_date", "2023-11-14"),)],
            below_bytes=1 << 20,
            user_metadata="{}",
        )

        assert (len(outcome.compacted), dict(outcome.unsupported)) == (1, {})
        assert len(shop.open().file_uris()) == 1
        assert shop.rest() == before == {1: {"color": "red"}, 2: {"size": [1, {"x": 1.5}]}, 3: {}}

    def test_rows_are_replaced_by_a_reprocess(self, shop: Shop) -> None:
        shop.add(event(1, color="red"), event(2))
        shop.spec = declared("color string from color")
        ((_, rows),) = Parser(shop.spec).parse(payloads_of(event(1, color="red"), event(2, size=1)), batch_metadata(2))
        shop.open()
        shop.lake.filesystem.create_dir(arrow_path(shop.lake.storage, "staged"))
        pq.write_table(rows, arrow_path(shop.lake.storage, "staged/part.parquet"))

        replacer = DirectReplacer(shop.lake, shop.objects, KEY, max_bytes=1 << 20)
        replaced = replacer.replace(
            SeqRanges(((1, 2),)), ["staged/part.parquet"], step=Step("reprocess", 1), user_metadata="{}"
        )

        assert replaced is not None
        assert replaced.outcome == "committed"
        assert shop.ask("SELECT color FROM shop.orders ORDER BY event_time") == [("red",), (None,)]
        assert shop.rest() == {1: {}, 2: {"size": 1}}


def test_private_fields_in_it_are_redacted_like_those_in_the_text() -> None:
    privacy: dict[str, Any] = {
        "namespace": "players",
        "subject": "player.id",
        "fields": [
            {"path": "player.id", "action": "token", "as": "player"},
            {"path": "player.email", "action": "vault", "as": "email"},
            {"path": "friends[].name", "action": "drop"},
            {"path": "ip", "action": "truncate_ip"},
        ],
    }
    content = event(
        1,
        player={"id": "canary-7", "email": "canary@example.org", "big": 12345678901234567890123},
        friends=[{"name": "canary", "level": 2}],
        ip="203.0.113.77",
    )

    def rest(keep_rest: str) -> pa.ChunkedArray:
        parser = Parser(declared(keep_rest=keep_rest, privacy=privacy), redaction_keys=RedactionKeys(bytes(range(32))))
        ((_, rows),) = parser.parse(payloads_of(content), batch_metadata())
        return rows.column("_rescued" if keep_rest == "text" else "_rest")

    variant = rest("variant")
    ((found,),) = [texts(variant)]
    assert [found] == texts(rest("text"))
    assert found["friends"] == [{"level": 2}]
    assert found["player"]["big"] == 12345678901234567890123
    assert found["player"]["id"].startswith("p1_")
    assert found["ip"] == "203.0.113.0"
    assert b"canary" not in b"".join(variant[0].as_py().values())


class TestErasure:
    def purger(self, shop: Shop) -> TablePurger:
        requests = {"r1": TokenSearch([token("ann")])}
        return TablePurger(shop.lake, shop.objects, KEY, pipeline="shop", table="orders", requests=requests)

    @pytest.mark.parametrize(
        "place",
        [
            {"friend": token("ann")},
            {"params": {"friends": [{"id": token("ann")}]}},
            {"note": f"invited by {token('ann')}."},
            {"scores": {token("ann"): 1}},
        ],
        ids=["value", "nested", "text", "name"],
    )
    def test_rows_with_a_token_in_it_are_purged(self, shop: Shop, place: dict[str, Any]) -> None:
        shop.add(event(1, **place), event(2, friend=token("bob")))
        file = pa.table(shop.open().get_add_actions()).column("path")[0].as_py()

        assert scan_object(shop.lake, f"{KEY}/{file}", TokenSearch([token("ann")])).tokens == {token("ann")}
        purged = self.purger(shop).purge(erasure_step("shop", "orders", 1))

        assert (purged.erased_before, purged.erased_after, purged.rows_after) == (1, 0, 1)
        assert shop.rest() == {2: {"friend": token("bob")}}

    def test_tokens_are_replaced_where_rows_stay(self, shop: Shop) -> None:
        scores = {f"p{number}": number for number in range(40)} | {token("ann"): -1, token("bob"): -2}
        shop.add(event(1, scores=scores, text=f"to {token('ann')} {token('ann')}", price=1.25), event(2))

        purged = self.purger(shop).purge(erasure_step("shop", "orders", 1), mode="identity")

        assert (purged.rows_after, purged.erased_after) == (2, 0)
        rest = shop.rest()[1]
        (replaced,) = set(rest["scores"]) - set(scores)
        assert rest["scores"] == {name: value for name, value in scores.items() if name != token("ann")} | {
            replaced: -1
        }
        assert (rest["text"], rest["price"]) == (f"to {replaced} {replaced}", 1.25)
        # Readers search the names of a large object by bisection.
        assert shop.ask(
            f"SELECT _rest.scores.{replaced}::INT FROM shop.orders WHERE level IS NULL AND _rest.n = 1"
        ) == [(-1,)]
        assert state_at(shop.lake, shop.objects, KEY, shop.open().version()).rows == 2
