"""A check of a project reports the errors of all files; an invalid file hides no error of another."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.checks.project import ProjectCheck, check_project
from deltaworks.specs.project import load_catalog
from deltaworks.testing import write_files
from tests.processes import run_process
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE, RELAY

SPARK = "gold SQL is written in Spark's dialect"
DAILY = """\
gold:
  lag: 15m
  tables:
    - {name: daily, sql: daily.sql, reads: [orders], partition_by: event_date}
"""
DAILY_SQL = "SELECT event_date, sum(amount) AS turnover FROM orders GROUP BY event_date"
WRONG = """\
pipeline: wrong
description: [a, b]
ownr: tests
source: {kind: s3_sqs, relay: landings, bucket: landing}
event:
  name: {path: $.name}
  time: {path: time}
tables:
  - name: orders
    when: {name: order}
    columns:
      - {name: amount, path: amount, type: decimal(12,2)}
      - {name: page, path: page, type: strng}
    zorder_by: [pgae]
    rules:
      - {name: positive, check: "amount > 0"}
  - name: clicks
    catch_all: true
    columns:
      - {name: page, path: payload/page, type: string}
    rules:
      - {name: long, check: "pge > 1"}
live:
  - {name: hourly, reads: ordrs}
stream: {trigger_seconds: soon}
gold:
  lag: every 15 minutes
  tables:
    - {name: b, sql: b.sql, reads: [c, clicks], partition_by: event_date}
    - {name: c, sql: c.sql, reads: [b], partition_by: event_date}
    - {name: d, sql: d.sql, reads: [clicks], partition_by: day, checks: {unique: [pages]}}
    - {name: e, sql: e.sql, reads: [clicks], partition_by: event_date, affects: never}
    - {name: f, sql: f.sql, reads: [orders, nowhere], partition_by: event_date}
    - {name: g, sql: g.sql, reads: [orders], partition_by: event_date}
"""
WRONG_SQL = {
    "b": "SELECT event_date FROM clicks",
    "c": "SELECT event_date FROM b",
    "d": "SELECT event_date, page FROM clicks",
    "e": "SELEC event_date FROM clicks",
    "f": "SELECT event_date FROM orders",
    "g": "SELECT event_date,\n  amout\nFROM orders",
}
#: Invalid values: by line, key and what is said.
ERRORS_OF_WRONG_PIPELINE = [
    "pipeline.yaml:1: owner: this key is required",
    "pipeline.yaml:2: description: write a text instead of a list",
    "pipeline.yaml:3: ownr: unknown key 'ownr'; did you mean 'owner'?",
    "pipeline.yaml:6: event.name.path: a path starts with a field name and not with $: write name",
    'pipeline.yaml:12: tables.0.columns.0.type: quote it, because of its comma: type: "decimal(12,2)"',
    "pipeline.yaml:13: tables.0.columns.1.type: unknown type 'strng'; known types are string, int, long, float, "
    "double, boolean, date, timestamp, binary, decimal(p,s), array<T>, map<string,T>, struct<a: T>",
    "pipeline.yaml:22: tables.1.rules.0.check: rule 'long': no column 'pge' in this table; did you mean 'page'?",
    "pipeline.yaml:25: stream.trigger_seconds: write a number instead of 'soon'",
    "pipeline.yaml:27: gold.lag: write a duration with its unit, such as 30s, 15m, 6h or 30d",
    "pipeline.yaml:32: gold.tables.3.affects: write all, same or keys and values instead of 'never'",
]
#: With their corrections, unknown names show, and after those conflicts with the project and errors in SQL.
NEXT_ERRORS: list[tuple[dict[str, str], list[str]]] = [
    (
        {
            "[a, b]": "orders",
            "ownr": "owner",
            "$.name": "name",
            "decimal(12,2)": '"decimal(12,2)"',
            "strng": "string",
            "pge > 1": "page <> ''",
            "soon": "5",
            "every 15 minutes": "15m",
            ", affects: never": "",
        },
        ["pipeline.yaml:14: tables.0.zorder_by.0: 'pgae' is not a column of this table; did you mean 'page'?"],
    ),
    (
        {"pgae": "page"},
        [
            "pipeline.yaml:24: live.0.reads: 'hourly' reads unknown table 'ordrs'; did you mean 'orders'?",
            "pipeline.yaml:29: gold.tables.0.reads: gold tables form a cycle: b reads c reads b; also on line 30",
            "pipeline.yaml:33: gold.tables.4.reads.1: 'f' reads unknown table 'nowhere'; known names: orders, clicks, "
            "b, c, d, e, f, g",
        ],
    ),
    (
        {"ordrs": "orders", "reads: [c, clicks]": "reads: [clicks]", ", nowhere": ""},
        [
            "pipeline.yaml:4: source.relay: there is no relay 'landings' in include/relays; did you mean 'landing'?",
            "pipeline.yaml:20: tables.1.columns.0.path: separate the names of a path by dots: write payload.page",
            "pipeline.yaml:31: gold.tables.2.partition_by: the result of d.sql has no column 'day'; its columns are "
            "event_date, page",
            "pipeline.yaml:31: gold.tables.2.checks.unique.0: the result of d.sql has no column 'pages'; did you mean "
            "'page'?",
            f"e.sql:1: invalid SQL: SELEC is not a statement; did you mean SELECT? ({SPARK})",
            f"g.sql:2: there is no column 'amout' in orders; did you mean 'amount'? ({SPARK})",
        ],
    ),
]


@pytest.fixture
def project(make_project: Callable[..., Path]) -> Path:
    """A project with the pipeline `shop`, which is right and has gold."""
    root = make_project(pipeline=PIPELINE + DAILY)
    (root / "include/pipelines/shop/daily.sql").write_text(DAILY_SQL)
    return root


def declare(root: Path, name: str, text: str, **sql: str) -> None:
    files = {"pipeline.yaml": text} | {f"{table}.sql": query for table, query in sql.items()}
    write_files(root / "include/pipelines" / name, files)


def messages(check: ProjectCheck, pipeline: str = "") -> list[str]:
    """The mistakes of a pipeline, their files without its folder; of all where none is named."""
    folder = f"include/pipelines/{pipeline}/" if pipeline else ""
    return [str(spec_error).removeprefix(folder) for spec_error in check.errors if str(spec_error).startswith(folder)]


def check_of_shop(root: Path, sql: str = DAILY_SQL, *, gold: str = DAILY, pipeline: str = PIPELINE) -> list[str]:
    declare(root, "shop", pipeline + gold, daily=sql)
    return messages(check_project("local", root=root), "shop")


def test_a_table_that_must_be_kept_up_with_new_rows_needs_sql_that_allows_it(project: Path) -> None:
    gold = DAILY.replace("event_date}", "event_date, refresh: incremental}")
    lowered = "SELECT event_date, lower(page) AS page, count(*) AS n FROM orders GROUP BY 1, 2"

    assert check_of_shop(project, "SELECT event_date, count(*) AS n FROM orders GROUP BY 1", gold=gold) == []
    (refused,) = check_of_shop(project, lowered, gold=gold)

    assert refused.endswith(
        "gold.tables.0.refresh: daily.sql cannot be kept up with new rows alone: Spark and DuckDB may evaluate it "
        "differently: line 1, LOWER(page); write refresh: auto, or change the SQL"
    )


def test_a_valid_project_has_no_error(project: Path) -> None:
    check = check_project("local", root=project)

    assert (check.errors, check.warnings) == ([], [])
    assert (list(check.pipelines), list(check.relays)) == (["shop"], ["landing"])


def test_this_project_has_no_error() -> None:
    assert messages(check_project("local", root=PROJECT_ROOT)) == []


@pytest.mark.parametrize("name", sorted(path.name for path in (PROJECT_ROOT / "include" / "pipelines").iterdir()))
def test_any_pipeline_can_be_removed_unless_its_tables_are_read(tmp_path: Path, name: str) -> None:
    for folder in ("environments", "relays", "pipelines"):
        shutil.copytree(PROJECT_ROOT / "include" / folder, tmp_path / "include" / folder)
    shutil.rmtree(tmp_path / "include" / "pipelines" / name)

    check = check_project("local", root=tmp_path)

    readers = {"cdn_logs": "video_qos", "filings": "stocks", "games": "revenue"}
    assert [line.split("/")[2] for line in messages(check)] == [
        reader for read, reader in readers.items() if read == name
    ]
    assert all(f"there is no pipeline {name!r}" in line for line in messages(check))
    assert name not in check.pipelines
    assert all(name in warning.text for warning in check.warnings)


def test_errors_of_a_pipeline_are_reported_together(project: Path) -> None:
    text = WRONG
    for corrections, expected in [({}, ERRORS_OF_WRONG_PIPELINE), *NEXT_ERRORS]:
        for wrong, right in corrections.items():
            assert wrong in text
            text = text.replace(wrong, right)
        declare(project, "wrong", text, **WRONG_SQL)

        check = check_project("local", root=project)

        assert messages(check, "wrong") == expected
        assert list(check.pipelines) == ["shop"]


def test_errors_of_all_pipelines_are_reported_together(project: Path) -> None:
    declare(project, "a_tab", PIPELINE.replace("  kind", "\tkind"))
    declare(project, "empty", "")
    declare(project, "wrong", WRONG, **WRONG_SQL)
    (project / "include/relays/second.yaml").write_text(RELAY.replace("[landing]", "landing"))
    (project / "include/environments/local.yaml").write_text(
        ENVIRONMENT + "overrides: {pipelines: {shopp: {owner: x}, games: {owner: x}}}\n"
    )

    check = check_project("local", root=project)

    assert messages(check) == [
        "include/relays/second.yaml:3: buckets: write a list: [landing]",
        "include/pipelines/a_tab/pipeline.yaml:5: YAML does not allow tabs: use spaces",
        "include/pipelines/empty/pipeline.yaml:1: the file has no keys; see docs/reference/pipeline/index.md",
        *(f"include/pipelines/wrong/{spec_error}" for spec_error in ERRORS_OF_WRONG_PIPELINE),
        "include/environments/local.yaml:5: overrides.pipelines.shopp: there is no pipeline 'shopp'; did you "
        "mean 'shop'?",
    ]
    assert [str(warning) for warning in check.warnings] == [
        "include/environments/local.yaml:5: overrides.pipelines.games: there is no pipeline 'games'; "
        "remove these lines, which have no effect"
    ]
    assert list(check.pipelines) == ["shop"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT event_date, amout FROM orders", "1: there is no column 'amout' in orders; did you mean 'amount'?"),
        (
            "SELECT event_date FROM\n orders, ordrs",
            "2: there is no table 'ordrs' in this pipeline; did you mean 'orders'?",
        ),
        ("SELECT event_date FROM shop.orders", "1: omit the name of the pipeline itself: write orders"),
        ("SELECT event_date FROM orders, refunds", "1: refunds is not in `reads`: add it"),
        ("SELECT event_date,\nFROM orders", "1: invalid SQL: an extra comma"),
        ("SELECT event_date\nFROM orders WHERE", "2: invalid SQL at 'WHERE': something is missing after it"),
        ("SELECT event_date, 'x FROM orders", "1: invalid SQL: a quote is not closed"),
        ("SELECT event_date, (1 FROM orders", "1: invalid SQL at 'FROM': Expecting )"),
        ("INSERT INTO orders SELECT 1", "1: write one SELECT and nothing else"),
        ("SELECT 1; SELECT 2", "1: write one SELECT and nothing else"),
        ("", "1: write one SELECT and nothing else"),
    ],
)
def test_gold_sql_is_parsed_as_spark_sql_with_known_names(project: Path, sql: str, expected: str) -> None:
    refunds = "  - name: refunds\n    when: {name: refund}\n"

    (spec_error,) = check_of_shop(project, sql, pipeline=PIPELINE.replace("stream:", refunds + "stream:"))

    assert spec_error.partition(f" ({SPARK})")[0] == f"daily.sql:{expected}"
    if "no SQL" in expected or "no column" in expected or "one SELECT" in expected:
        assert SPARK in spec_error


REST = PIPELINE.replace("  - name: orders\n", "  - name: orders\n    evolve: rescue\n    keep_rest: variant\n")
CAST = " is a variant, with which DuckDB rounds numbers and compares types; cast it first, such as _rest.price::DOUBLE"
CAST_FIELDS = [
    *("_rest", "_rest::JSON", "to_json(_rest)", "_rest IS NULL", "_rest.a::DOUBLE > 1", "sum(_rest.a::DOUBLE)"),
    *("o._rest.a.b[1]::INT", "_rest['color']::INT", "(_rest.a)::INT + 1", "try_cast(_rest.a AS INT)"),
    *("_rest.c = 'x'", "'x' = _rest.c", "_rest.c IN ('a', 'b')", "_rest.c BETWEEN 'a' AND 'b'", "_rest.c LIKE 'x%'"),
    *("_rest.c IS NULL", "count(_rest.a)", "count(DISTINCT _rest.a)", "upper(_rest.c)", "_rest.c || 'y'"),
    *("_rest.t = true", "NOT _rest.t", "typeof(_rest.a)", "coalesce(_rest.a::INT, 0)", "_rest.a::INT = o.amount"),
]
FIELDS_WITHOUT_CAST = [
    *("_rest.a", "o._rest.a.b", "_rest.a > 1", "_rest.a = 1.5", "_rest.a + 1", "-_rest.a", "_rest.a[1] * 2"),
    *("sum(_rest.a)", "avg(_rest.a.b)", "min(_rest.a)", "sum(_rest.a) OVER ()", "any_value(_rest.a)"),
    *("_rest.a IN (1, 2)", "_rest.a BETWEEN 1 AND 2", "_rest.a = o.amount", "round(_rest.a)", "coalesce(_rest.a, 0)"),
    *("length(_rest.c)", "date_trunc('day', _rest.a)", "row_number() OVER (ORDER BY _rest.a)", "(_rest['a']) <> 2"),
]
ADVICE = "_rest is a variant; write variant_get(_rest, '$.color', 'string') for its field color"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("variant_get(_rest, '$.color', 'string')", None),
        ("to_json(_rest)", None),
        ("_rest", None),
        ("_rest.color", ADVICE),
        ("o._rest.color", ADVICE),
        ("o._rest.a.b.c", ADVICE),
        ("_REST['color']", ADVICE),
        ("_rescued", "there is no column '_rescued' in o; did you mean '_rest'?"),
    ],
)
def test_gold_sql_reads_undeclared_fields_as_spark_does(project: Path, item: str, expected: str | None) -> None:
    sql = f"SELECT event_date,\n{item} AS field FROM orders o"

    found = [text.partition(f" ({SPARK})")[0] for text in check_of_shop(project, sql, pipeline=REST)]

    assert found == ([] if expected is None else [f"daily.sql:2: {expected}"])


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        *((item, None) for item in CAST_FIELDS),
        *((item, CAST) for item in FIELDS_WITHOUT_CAST),
        ("variant_get(_rest, '$.color', 'string')", "there is no function variant_get; write _rest.color::VARCHAR"),
    ],
)
def test_views_read_undeclared_fields_as_duckdb_does(project: Path, item: str, expected: str | None) -> None:
    (project / "include/pipelines/shop/colors.sql").write_text(f"SELECT {item} AS field FROM orders o")
    view = "views:\n  - {name: colors, sql: colors.sql, reads: [orders]}\n"

    found = check_of_shop(project, gold=DAILY + view, pipeline=REST)

    assert len(found) == (expected is not None)
    assert expected is None or (found[0].startswith("colors.sql:1: ") and expected in found[0])


def test_gold_cannot_tell_duplicates_by_undeclared_fields(project: Path) -> None:
    dedupe = "  dedupe: {by: _rest, within_days: 1}\n"

    assert check_of_shop(project, gold=DAILY + dedupe, pipeline=REST) == [
        "pipeline.yaml:25: gold.dedupe.by: _rest of 'orders' is a variant; declare a column for the field"
    ]


def test_declared_result_columns_must_exist(project: Path) -> None:
    gold = DAILY.replace("event_date}", "day, checks: {unique: [event_dte], not_null: turnover}}")

    assert check_of_shop(project, gold=gold) == [
        "pipeline.yaml:22: gold.tables.0.partition_by: the result of daily.sql has no column 'day'; its columns are "
        "event_date, turnover",
        "pipeline.yaml:22: gold.tables.0.checks.unique.0: the result of daily.sql has no column 'event_dte'; did you "
        "mean 'event_date'?",
    ]


def test_a_gold_input_has_the_result_columns_of_its_query(project: Path) -> None:
    weekly = "    - {name: weekly, sql: weekly.sql, reads: [daily], partition_by: event_date}\n"
    declare(project, "shop", PIPELINE + DAILY + weekly, weekly="SELECT event_date, turnovr FROM daily")

    assert messages(check_project("local", root=project), "shop") == [
        f"weekly.sql:1: there is no column 'turnovr' in daily; did you mean 'turnover'? ({SPARK})"
    ]


def test_the_dedupe_key_is_a_column(project: Path) -> None:
    assert check_of_shop(project, gold=DAILY + "  dedupe: {by: event_ids}\n") == [
        "pipeline.yaml:23: gold.dedupe.by: 'orders', which gold reads, has no column 'event_ids'; did you mean "
        "'event_id'?"
    ]


def test_a_bucket_that_no_relay_watches_is_named(project: Path) -> None:
    assert check_of_shop(project, pipeline=PIPELINE.replace("bucket: landing", "bucket: lading")) == [
        "pipeline.yaml:7: source.bucket: the relay 'landing' does not watch the bucket 'lading'; did you mean "
        "'landing'?"
    ]
    (project / "include/relays/other.yaml").write_text("relay: other\nlisting: {}\nbuckets: [files]\n")
    assert check_of_shop(project, pipeline=PIPELINE.replace("bucket: landing", "bucket: files")) == [
        "pipeline.yaml:7: source.bucket: the relay 'landing' does not watch the bucket 'files'; the relay 'other' does"
    ]
    assert check_of_shop(project, pipeline=PIPELINE.replace("bucket: landing", "bucket: zzz")) == [
        "pipeline.yaml:7: source.bucket: the relay 'landing' does not watch the bucket 'zzz'; add it to `buckets` in "
        "include/relays/landing.yaml"
    ]


def test_field_names_of_files_can_contain_slashes(project: Path) -> None:
    slash = PIPELINE.replace("path: amount", "path: km/h")

    assert check_of_shop(project, pipeline=slash) == [
        "pipeline.yaml:16: tables.0.columns.0.path: separate the names of a path by dots: write km.h"
    ]
    assert check_of_shop(project, pipeline=slash.replace("  bucket:", "  format: csv\n  bucket:")) == []


def test_unselected_sources_are_validated_too(project: Path) -> None:
    sources = (
        "source: main\nsources:\n  main: {kind: s3_sqs, relay: landing, bucket: landing, max_files_per_batch: 0}\n"
    )
    sources += "  other: {kind: kafk}\n"
    source = PIPELINE[PIPELINE.index("source:") : PIPELINE.index("event:")]

    assert check_of_shop(project, pipeline=PIPELINE.replace(source, sources)) == [
        "pipeline.yaml:7: sources.other.kind: there is no kind 'kafk'; did you mean 'kafka'?",
    ]
    sources = sources.replace("{kind: kafk}", "{kind: s3_sqs, relay: landing, bucket: landing}")
    assert check_of_shop(project, pipeline=PIPELINE.replace(source, sources)) == [
        "pipeline.yaml:6: sources.main.max_files_per_batch: write 1 or more instead of 0",
    ]


def test_gold_without_a_lag_has_a_warning(project: Path) -> None:
    declare(project, "shop", PIPELINE + DAILY.replace("  lag: 15m\n", ""))

    check = check_project("local", root=project)

    assert [str(warning) for warning in check.warnings] == [
        "include/pipelines/shop/pipeline.yaml:19: gold: daily: no lag is declared, so it is built only by `deltaworks "
        "gold build shop`, which shop__gold runs too; write lag: 15m below gold"
    ]
    assert check.errors == []

    nightly = 'maintenance: {schedule: "0 3 * * *"}\n'
    declare(project, "shop", PIPELINE + nightly + DAILY.replace("  lag: 15m\n", ""))
    (warning,) = check_project("local", root=project).warnings
    assert "is built only at the end of maintenance, or by `deltaworks gold build shop`" in warning.text
    assert get_operation("rebuild_gold").command == "gold build"


@pytest.mark.parametrize(
    ("total", "fast", "inherited"), [("lag: 30s", "lag: 15m", ""), ("lag: 1h", "lag: 30s", ", which it has from a")]
)
def test_a_table_that_reads_all_rows_may_not_meet_a_short_lag(
    project: Path, total: str, fast: str, inherited: str
) -> None:
    tables = (
        f"    - {{name: total, sql: total.sql, reads: [daily], partition_by: year, affects: all, {total}}}\n"
        f"    - {{name: fast, sql: fast.sql, reads: [total], partition_by: year, affects: all, {fast}}}\n"
    )
    sql = {"total": "SELECT 2026 AS year, sum(turnover) AS n FROM daily", "fast": "SELECT year, n FROM total"}
    declare(project, "shop", PIPELINE + DAILY + tables, **sql)

    texts = [warning.text for warning in check_project("local", root=project).warnings]

    assert any(text.startswith(f"total may not meet its lag of 30s{inherited}") for text in texts), texts


def test_an_invalid_environment_hides_no_errors_of_pipelines(project: Path) -> None:
    (project / "include/environments/local.yaml").write_text(ENVIRONMENT + "colour: blue\n")
    declare(project, "empty", "")

    assert [spec_error.partition(": ")[0] for spec_error in messages(check_project("local", root=project))] == [
        "include/environments/local.yaml:5",
        "include/pipelines/empty/pipeline.yaml:1",
    ]


def test_an_unknown_environment_ends_the_check(project: Path) -> None:
    with pytest.raises(ConfigError, match="SPEC_MISSING"):
        check_project("prod", root=project)


def test_the_check_accepts_exactly_the_specs_that_load(project: Path) -> None:
    declare(project, "wrong", WRONG, **WRONG_SQL)
    declare(project, "empty", "")

    assert list(check_project("local", root=project).pipelines) == list(
        load_catalog("local", root=project, skip_invalid=True).pipelines
    )


def test_only_the_check_needs_a_parser_of_sql() -> None:
    """A stream, and every other command, does without the time that one takes to load."""
    program = (
        "import sys, deltaworks.specs.checks.project, deltaworks.cli.pipelines; "
        "from deltaworks.specs.project import load_catalog; load_catalog(); print('sqlglot' in sys.modules)"
    )

    done = run_process([sys.executable, "-c", program], cwd=PROJECT_ROOT / "include", check=True)

    assert done.stdout.strip() == "False"


BOARD = """\
gold:
  tables:
    - {name: weekly, sql: weekly.sql, reads: [READS], partition_by: event_date}
"""


def board(project: Path, reads: str, sql: str) -> ProjectCheck:
    """A second pipeline, without a lag, whose gold reads gold of the shop."""
    text = PIPELINE.replace("pipeline: shop", "pipeline: board") + BOARD.replace("READS", reads)
    declare(project, "board", text, weekly=sql)
    return check_project("local", root=project)


def test_gold_of_another_pipeline_has_its_own_name_in_sql(project: Path) -> None:
    check = board(project, "shop.daily", "SELECT event_date, turnover FROM shop__daily")
    assert (check.errors, check.warnings) == ([], []), "it is built after its input"

    (spec_error,) = board(project, "shop.daily", "SELECT event_date, turnover FROM shop.daily").errors
    assert spec_error.text == "tables of other pipelines are named with underscores: write shop__daily"


def test_gold_with_own_and_external_inputs_needs_a_lag(project: Path) -> None:
    sql = "SELECT event_date FROM shop__daily JOIN orders USING (event_date)"

    (warning,) = board(project, "shop.daily, orders", sql).warnings

    assert "is built only after gold of other pipelines that it reads, by `deltaworks gold build board`" in warning.text
