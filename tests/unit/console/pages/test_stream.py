"""The pages of a stream and of a batch in every state, with missing and damaged records."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.records.generations import Generations
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.control.summaries.stream import BatchSummary, StreamSummaryWriter
from tests.console_harness import ConsoleHarness, ago
from tests.records import record_of

SPANS = ("6h", "24h", "7d", "forever", "")
BATCH = "/streams/games/batches/812"


def write_batches(harness: ConsoleHarness, *, through: int = 812, count: int = 30) -> None:
    """Writes summaries of batches one minute apart, with a gap of an hour after the first ten."""
    writer = StreamSummaryWriter(harness.objects, "games")
    for back in range(count, -1, -1):
        writer.add(
            BatchSummary(
                batch_id=through - back,
                at=ago(60 * back + (3_600 if back > count - 10 else 0)),
                rows=100,
                quarantined=3,
                files=2,
                bytes=1_000,
                tables=2,
                prepare_seconds=3.0,
                commit_seconds=1.0,
                complete_seconds=0.5,
                oldest_pending_seconds=40.0,
                arrival_ages=(9.0, 40.0),
            )
        )
    writer.add_problem(utc_now(), "boom")
    writer.write(utc_now())


def write_prepared(harness: ConsoleHarness, **changes: Any) -> None:
    """Writes prepared batch 812 with two tables."""
    files: tuple[dict[str, Any], ...] = ({"path": "a", "size": 1_000}, {"path": "b", "size": 500})
    batch = record_of(
        PreparedBatch,
        generation=1,
        pipeline="games",
        batch_id=812,
        run="games__stream/scheduled__1/ingest/1",
        prepared_at=iso_now(),
        spec_fingerprint="4f2a" * 8,
        code_version="0.4.0",
        offsets={"seq": 10_240},
        source={"files": 19},
        tables=(
            PreparedTable(table="events", writer="rust", rows=100, files=files),
            PreparedTable(table="purchase", writer="spark", rows=8),
        ),
    )
    harness.objects.put(paths.prepared_batch("games", 1, 812), batch.replace(**changes).encode())


@pytest.fixture
def with_batches(harness: ConsoleHarness) -> ConsoleHarness:
    harness.write_heartbeat("games", oldest_pending_at=ago(40), backlog_files=2)
    write_batches(harness)
    write_prepared(harness)
    harness.objects.put(paths.generations("games"), Generations.first().encode())
    return harness


@pytest.mark.parametrize("span", SPANS)
def test_a_stream_is_drawn_over_each_span(with_batches: ConsoleHarness, span: str) -> None:
    shown = with_batches.view(f"/streams/games?span={span}")
    html = with_batches.get(f"/streams/games?span={span}").text

    assert shown["span"] == (span if span in ("6h", "24h", "7d") else "6h")
    drawn = [chart for chart in shown["charts"] if any(value is not None for _, value in chart["points"])]
    assert html.count("<figure") == len(drawn) >= 2
    assert html.count('<svg class="timed"') == html.count('<ol class="scale"') == len(drawn)
    assert html.count(": no data since ") == 3 - len(drawn)


def test_a_stop_is_drawn_as_a_gap(with_batches: ConsoleHarness) -> None:
    points = with_batches.view("/streams/games")["charts"][0]["points"]

    assert sum(value is None for _, value in points) == 1
    assert len(points) == 32


def test_the_owner_the_freshness_and_the_last_batches_are_shown(with_batches: ConsoleHarness) -> None:
    shown = with_batches.view("/streams/games")

    assert (shown["owner"]["epoch"], shown["owner"]["generation"], shown["owner"]["checkpoint"]) == (14, 1, 1)
    assert (shown["owner"]["dag_id"], shown["owner"]["run_id"]) == ("games__stream", "r")
    assert (shown["bronze_p50_seconds"], shown["bronze_p95_seconds"]) == (9.0, 40.0)
    assert [item["batch_id"] for item in shown["batches"]] == list(range(812, 792, -1))
    assert [text for _, text in shown["problems"]] == ["boom"]


def test_a_held_table_is_shown_with_start_and_reason(with_batches: ConsoleHarness) -> None:
    held = {
        "table": "purchase",
        "reason": "suspended",
        "since_batch": 790,
        "at": ago(600),
        "condition": "TABLE_SUSPENDED",
    }
    with_batches.write_heartbeat("games", held=({**held, "message": "a column differs"},))
    html = with_batches.get("/streams/games").text

    assert [item["table"] for item in with_batches.view("/streams/games")["held"]] == ["purchase"]
    assert "a column differs" in html
    assert with_batches.view(BATCH)["shares"][1]["outcome"] == "held"
    assert with_batches.view(BATCH)["shares"][0]["outcome"] == "committed"


def test_a_batch_shows_its_phases_tables_and_input(with_batches: ConsoleHarness) -> None:
    shown = with_batches.view(BATCH)

    assert (shown["state"], shown["prepare_seconds"], shown["rows"]) == ("complete", 3.0, 108)
    assert [(share["table"], share["files"], share["bytes"]) for share in shown["shares"]] == [
        ("events", 2, 1_500),
        ("purchase", 0, 0),
    ]
    assert ["seq", "10240"] in shown["offsets"]
    assert (shown["previous_batch"], shown["next_batch"]) == (811, None)


def test_a_batch_without_its_prepared_batch_is_shown_from_the_summary(with_batches: ConsoleHarness) -> None:
    shown = with_batches.view("/streams/games/batches/800")

    assert (shown["rows"], shown["shares"], shown["next_batch"]) == (100, [], 801)
    assert "has been removed" in with_batches.get("/streams/games/batches/800").text


@pytest.mark.parametrize("number", ["99999", "-1", "x", "1" * 40, "٣", "²"])
def test_an_unknown_batch_is_missing(with_batches: ConsoleHarness, number: str) -> None:
    assert with_batches.get(f"/streams/games/batches/{number}").status_code == 404


def test_a_stream_that_never_ran_has_its_page(harness: ConsoleHarness) -> None:
    shown = harness.view("/streams/edits")

    assert (shown["batches"], shown["running_spec"], shown["owner"]["epoch"]) == ([], "", None)


def test_an_invalid_pipeline_has_its_page(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("games", batch_id=41)
    harness.catalog.root.joinpath("include/pipelines/games/pipeline.yaml").write_text("pipeline: games\ncolour: blue\n")
    shown = harness.view("/streams/games")

    assert (shown["row"]["cause"], shown["owner"]["batch_id"]) == ("INVALID_DECLARATION", 41)
    assert "unknown key 'colour'" in shown["row"]["detail"]


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"format": 99}', b"\xff\xfe", b'{"fingerprint": 3}'])
@pytest.mark.parametrize(
    "key",
    [
        paths.heartbeat(paths.pipeline_control("games")),
        paths.generations("games"),
        paths.current_spec("games"),
        paths.prepared_batch("games", 1, 812),
        paths.recent_batches("games"),
        paths.stream_hours("games"),
    ],
)
def test_a_damaged_object_breaks_neither_page(with_batches: ConsoleHarness, key: str, torn: bytes) -> None:
    with_batches.objects.put(key, torn)

    assert with_batches.get("/streams/games").status_code == 200
    assert with_batches.get("/streams/games?span=7d").status_code == 200
    assert with_batches.get(BATCH).status_code == 200


@pytest.mark.parametrize("held", [[{}], [{"table": None, "since_batch": "x", "at": 3}]])
def test_a_heartbeat_of_another_release_breaks_no_page(with_batches: ConsoleHarness, held: list[Any]) -> None:
    key = paths.heartbeat(paths.pipeline_control("games"))
    stored = with_batches.objects.get(key)
    assert stored is not None
    with_batches.objects.put(
        key, json.dumps({**json.loads(stored.data), "held": held, "started_at": 7, "news": 1}).encode()
    )

    assert with_batches.get("/streams/games").status_code == 200
    assert with_batches.get(BATCH).status_code == 200


def test_the_facts_of_a_batch_are_words_and_no_code(with_batches: ConsoleHarness) -> None:
    source = {
        "files": 19,
        "newest": {"seq": 304, "log": "a"},
        "complete": True,
        "rejected": [["malformed", "", 13], ["missing_required", "eventParams", 4_001]],
        "dates": ["2026-01-01", "2026-01-02"],
        "note": "word " * 100,
    }
    write_prepared(with_batches, source=source)

    shown, page = with_batches.view(BATCH), with_batches.get(BATCH).text

    facts = dict(shown["facts"])
    assert facts["rejected"] == "malformed: 13, missing_required at eventParams: 4001"
    assert (facts["newest"], facts["complete"], facts["dates"]) == ("seq 304, log a", "yes", "2026-01-01, 2026-01-02")
    assert facts["note"].endswith("word …"), "cut between words"
    assert not re.search(r"\{&#39;|\[&#39;|\bTrue\b|\bNone\b", page), "no reprs"


def test_a_stream_links_the_pages_of_its_pipeline(with_batches: ConsoleHarness) -> None:
    page = with_batches.get("/streams/games").text

    for path in ("/quarantine/games", "/tables?only=games", "/gold/games", "/nights/games", "/alerts?only=games",
                 "/lineage?of=stream%20games", "/costs?only=games"):  # fmt: skip
        assert f'href="{path}"' in page
        assert with_batches.get(path).status_code == 200


def test_charts_begin_with_their_data(with_batches: ConsoleHarness, harness: ConsoleHarness) -> None:
    wide = with_batches.view("/streams/games?span=7d")
    since, until = datetime.fromisoformat(wide["since"]), datetime.fromisoformat(wide["until"])

    assert until - since < timedelta(hours=10), "and not with days without data"
    assert until - since >= timedelta(hours=7), "a share of the span at least"
