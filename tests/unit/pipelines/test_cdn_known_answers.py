"""The pipeline `cdn_logs` on real CloudFront logs and firewall test input gives independently counted results."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deltaworks.charts.drawing import Span
from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.dashboards.answers import answer_dashboard
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.source_fields import pin_databases
from deltaworks.rules.backtest import backtest, with_overrides
from deltaworks.rules.evaluation import minute_text
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import local_storage
from tests.unit.pipelines.shipped_lake import ShippedLake, without_dedupe

#: The first fields of a standard log, which the files without a header have.
WAF_FIELDS = [
    "date",
    "time",
    "x-edge-location",
    "sc-bytes",
    "c-ip",
    "cs-method",
    "cs(Host)",
    "cs-uri-stem",
    "sc-status",
    "cs(Referer)",
    "cs(User-Agent)",
    "cs-uri-query",
    "cs(Cookie)",
    "x-edge-result-type",
    "x-edge-request-id",
    "x-host-header",
    "cs-protocol",
    "cs-bytes",
    "time-taken",
]
REAL, WAF = "sample-cloudfront-access-logs.gz", "cf-access-log-sample.gz"
MASKED = "E3HXCM7PFRG6HT.2023-04-24-21.d740d76bCloudFront.gz"


def contents(logs: Path, name: str) -> bytes:
    data = (logs / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


def without_header(path: str, text: str) -> str:
    """The pipeline for files whose lines have the fields of `WAF_FIELDS`, and no header."""
    if path != "cdn_logs/pipeline.yaml":
        return text
    names = ", ".join(f'"{name}"' for name in WAF_FIELDS)
    declared, with_names = 'tsv: {null_values: ["-", ""]}', f'tsv: {{columns: [{names}], null_values: ["-", ""]}}'
    assert declared in text
    return text.replace(declared, with_names)


def with_every_line(path: str, text: str) -> str:
    """The same, for samples that have one id a thousand times, by intention."""
    edited = without_header(path, text)
    return without_dedupe(edited) if path == "cdn_logs/pipeline.yaml" else edited


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, shared_logs: Path) -> ShippedLake:
    lake = ShippedLake(tmp_path_factory.mktemp("real"), "cdn_logs")
    lake.land("cdn_logs", ("cdn_logs/a.gz", contents(shared_logs, REAL)))
    lake.build("cdn_logs")
    return lake


@pytest.fixture(scope="module")
def waf(tmp_path_factory: pytest.TempPathFactory, shared_logs: Path) -> ShippedLake:
    lake = ShippedLake(tmp_path_factory.mktemp("waf"), "cdn_logs", edit=with_every_line)
    lake.land("cdn_logs", ("cdn_logs/cdn=waf/a.gz", contents(shared_logs, WAF)))
    lake.build("cdn_logs")
    return lake


def test_real_requests_by_minute_and_edge(real: ShippedLake) -> None:
    by_minute = real.rows(
        "SELECT strftime(minute, '%H:%M'), sum(requests)::INT FROM cdn_logs.cdn_minute GROUP BY 1 ORDER BY 1"
    )
    totals = real.rows(
        "SELECT sum(bytes)::INT, sum(hits)::INT, sum(cacheable)::INT, sum(errors_5xx)::INT FROM cdn_logs.cdn_minute"
    )
    edges = dict(real.rows("SELECT edge, sum(requests)::INT FROM cdn_logs.cdn_minute GROUP BY 1"))

    assert by_minute == [("00:11", 1), ("00:12", 21), ("00:13", 44)]
    # 41 answers of a function at the edge were neither hit nor miss.
    assert totals == [(81_303, 23, 25, 0)]
    assert (len(edges), edges["FRA"], edges["BOM"], sum(edges.values())) == (3, 41, 24, 66)


def test_panels_show_shares_as_percentages(real: ShippedLake) -> None:
    (dashboard,) = real.catalog.pipeline("cdn_logs").dashboards
    span = Span(dt.datetime(2018, 11, 7, tzinfo=dt.UTC), dt.datetime(2018, 11, 8, tzinfo=dt.UTC))

    answer = answer_dashboard(real.catalog, "cdn_logs", dashboard, span)

    shares = {
        panel.panel.title: [value for row in panel.rows for value in row if isinstance(value, float)]
        for panel in answer.panels
        if panel.panel.unit == "percent"
    }
    # 23 of 25 requests that a cache could answer, none with 5xx.
    assert {title: max(values) for title, values in shares.items()} == {"Hit ratio": 100.0, "5xx responses": 0.0}
    assert min(shares["Hit ratio"]) > 1
    assert [panel.problem for panel in answer.panels] == [""] * len(dashboard.panels)


@pytest.mark.parametrize(
    ("edge", "p50", "p95"), [("%", 0.5005, 2.0323), ("FRA53", 0.399, 2.015), ("BOM52", 0.8015, 2.4362)]
)
def test_percentiles_are_interpolated(real: ShippedLake, edge: str, p50: float, p95: float) -> None:
    (row,) = real.rows(
        "SELECT quantile_cont(seconds, 0.5), quantile_cont(seconds, 0.95), quantile_disc(seconds, 0.5) "
        f"FROM cdn_logs.requests WHERE edge LIKE '{edge}'"
    )

    assert row[:2] == pytest.approx((p50, p95), abs=6e-5)
    if edge == "%":
        assert row[2] == 0.454  # the nearest rank, 10 % away


@pytest.mark.parametrize(
    ("name", "rows"),
    [("sample-lambda-at-edge-viewer-request.gz", 36), ("sample-lambda-at-edge-origin-request-logs.gz", 2)],
)
def test_functions_at_the_edge_join_by_request_id_as_it_is(
    real: ShippedLake, shared_logs: Path, name: str, rows: int
) -> None:
    logged = {event_id for (event_id,) in real.rows("SELECT event_id FROM cdn_logs.requests")}
    called = [json.loads(line)["requestId"] for line in contents(shared_logs, name).splitlines() if line.strip()]

    assert (len(called), sum(request in logged for request in called)) == (rows, rows)
    assert len({request.lower() for request in logged}) == len(logged) == 66


def test_logs_without_a_header_are_counted_whole(waf: ShippedLake) -> None:
    (row,) = waf.rows(
        "SELECT count(*), count(DISTINCT event_id), count(DISTINCT edge), sum(bytes)::BIGINT, count(result) "
        "FROM cdn_logs.requests"
    )
    hours = dict(waf.rows("SELECT hour(minute), sum(requests)::INT FROM cdn_logs.cdn_minute GROUP BY 1"))

    # The type of result is the empty text, which stands for nothing.
    assert row == (28_949, 25_996, 29, 15_532_486_988, 0)
    assert hours == {22: 21_913, 23: 7_036}


def test_the_error_rate_leaves_out_clients_that_left(waf: ShippedLake) -> None:
    (row,) = waf.rows(
        "SELECT sum(errors_5xx)::INT, sum(errors_4xx)::INT, sum(clients_left)::INT, "
        "sum(errors_5xx) / sum(answered) FROM cdn_logs.cdn_minute"
    )
    by_minute = waf.rows(
        "SELECT round(100 * sum(errors_5xx) / sum(answered), 2) FROM cdn_logs.cdn_minute "
        "WHERE minute BETWEEN '2026-01-11 22:56:00+00' AND '2026-01-11 23:01:00+00' GROUP BY minute ORDER BY minute"
    )

    assert (*row[:3], round(row[3], 5)) == (3_453, 6_351, 1_751, 0.12696)
    assert [rate for (rate,) in by_minute] == [13.19, 8.75, 14.68, 14.33, 14.62, 13.61]


def test_copies_by_request_id_are_left_out_where_that_is_declared(tmp_path: Path, shared_logs: Path) -> None:
    lake = ShippedLake(tmp_path, "cdn_logs", edit=without_header)
    lake.land("cdn_logs", ("cdn_logs/a.gz", contents(shared_logs, WAF)))
    lake.build("cdn_logs")

    assert lake.one("SELECT sum(requests)::INT FROM cdn_logs.cdn_minute") == 25_996
    most = "SELECT max(n) FROM (SELECT count(*) AS n FROM cdn_logs.requests GROUP BY event_id)"
    assert lake.one(most) == 2_801


def test_addresses_become_networks(real: ShippedLake, waf: ShippedLake, shared_logs: Path) -> None:
    addresses = {
        line.split("\t")[4] for line in contents(shared_logs, WAF).decode().splitlines() if line[:1] not in "#"
    }
    networks = {network for (network,) in waf.rows("SELECT DISTINCT network FROM cdn_logs.requests")}

    assert real.one("SELECT count(DISTINCT network) FROM cdn_logs.requests") == 3
    assert (len(addresses), len(networks)) == (15_596, 15_591)
    assert any(address.startswith("FE80::0202") for address in addresses)
    assert "fe80::" in networks


def test_what_is_no_address_has_no_network_and_lands(tmp_path: Path, shared_logs: Path) -> None:
    lake = ShippedLake(tmp_path, "cdn_logs", edit=with_every_line)
    lake.land("cdn_logs", ("cdn_logs/a.gz", contents(shared_logs, MASKED)))
    lake.build("cdn_logs")

    assert lake.rows("SELECT count(*), count(network), count(isp) FROM cdn_logs.requests") == [(152, 0, 0)]
    assert lake.one("SELECT sum(requests)::INT FROM cdn_logs.cdn_minute WHERE isp IS NULL") == 152


def test_a_line_without_an_address_an_agent_and_an_answer_is_a_request(tmp_path: Path, shared_logs: Path) -> None:
    head = b"\n".join(contents(shared_logs, REAL).splitlines()[:2])
    line = contents(shared_logs, REAL).splitlines()[2].split(b"\t")
    line[4], line[8], line[10] = b"-", b"000", b"-"
    lake = ShippedLake(tmp_path, "cdn_logs")
    lake.land("cdn_logs", ("cdn_logs/a", b"\n".join([head, b"\t".join(line)]) + b"\n"))
    lake.build("cdn_logs")

    assert lake.rows("SELECT network, isp, browser, status FROM cdn_logs.requests") == [(None, None, None, "000")]
    assert lake.rows("SELECT requests, answered, clients_left FROM cdn_logs.cdn_minute") == [(1, 0, 1)]


def test_files_of_the_streaming_protocol_are_quarantined_line_by_line(tmp_path: Path, shared_logs: Path) -> None:
    """RTMP's logs: with spaces as they are in the sample, and with tabs, where the id of a request is missing."""
    spaced = contents(shared_logs, "cloudfront.log")
    names = b"#Fields: date time x-edge-location c-ip x-event sc-bytes\n"
    tabbed = names + b"2010-03-12\t23:51:20\tSEA4\t192.0.2.147\tconnect\t2014\n"
    lake = ShippedLake(tmp_path, "cdn_logs")
    lake.land("cdn_logs", ("cdn_logs/a", spaced), ("cdn_logs/b", tabbed), ("cdn_logs/c", contents(shared_logs, REAL)))

    assert lake.reasons("cdn_logs") == {"malformed": 2, "missing_required": 1}
    # Private fields leave no raw line behind.
    assert lake.rows("SELECT DISTINCT raw, raw_complete FROM cdn_logs.quarantine") == [("", False)]
    assert lake.one("SELECT count(*) FROM cdn_logs.requests") == 66


def test_a_file_that_comes_a_day_late_twice_and_before_others_changes_nothing_but_its_hours(
    tmp_path: Path, shared_logs: Path
) -> None:
    data = contents(shared_logs, REAL)
    head, lines = data.splitlines()[:2], data.splitlines()[2:]
    files = [
        (f"cdn_logs/{name}.gz", b"\n".join([*head, *part]) + b"\n")
        for name, part in (("b", lines[40:]), ("c", lines[:10]), ("c-again", lines[:10]), ("late", lines[10:40]))
    ]
    other_day = data.replace(b"2018-11-07", b"2018-11-09").replace(b"==\t", b"xx\t")
    lake = ShippedLake(tmp_path, "cdn_logs")
    lake.land("cdn_logs", ("cdn_logs/other.gz", other_day))
    lake.build("cdn_logs")
    built = []
    for number, file in enumerate(files):
        lake.land("cdn_logs", file, ingested_at_us=1_700_000_000_000_000 + number * 86_400_000_000)
        built.append(lake.build("cdn_logs")["cdn_minute"])

    assert set(built) == {("2018-11-06T23", "2018-11-07T00", "2018-11-07T01")}  # copies may lie an hour apart
    by_minute = lake.rows(
        "SELECT strftime(minute, '%d %H:%M'), sum(requests)::INT FROM cdn_logs.cdn_minute GROUP BY 1 ORDER BY 1"
    )
    one_day = [("00:11", 1), ("00:12", 21), ("00:13", 44)]
    assert by_minute == [(f"{day} {minute}", count) for day in ("07", "09") for minute, count in one_day]


def test_the_player_is_recognised_however_often_its_query_is_encoded(tmp_path: Path, shared_logs: Path) -> None:
    head = b"\n".join(contents(shared_logs, REAL).splitlines()[:2])
    line = contents(shared_logs, REAL).splitlines()[2].split(b"\t")
    queries = (
        b"CMCD=br%3D3200%2Cbs%2Csid%3D%22aB1%22",
        b"CMCD=bs%252Csid%253D%2522aB1%2522",
        b"a=1&CMCD=sid%3D%22Ab1%22",
        b"obs=1&resid=2",
    )
    rows = []
    for number, query in enumerate(queries):
        line[11], line[14] = query, f"id{number}".encode()
        rows.append(b"\t".join(line))
    lake = ShippedLake(tmp_path, "cdn_logs")
    lake.land("cdn_logs", ("cdn_logs/a", b"\n".join([head, *rows]) + b"\n"))
    lake.build("cdn_logs")

    sessions = lake.rows("SELECT sid, requests, starved_requests::INT FROM cdn_logs.cdn_sessions ORDER BY sid DESC")
    assert sessions == [("aB1", 2, 2), ("Ab1", 1, 0)]
    assert lake.rows("SELECT player_requests::INT, starved_requests::INT FROM cdn_logs.cdn_minute") == [(3, 2)]


ERRORS_SQL = """\
SELECT minute, cdn, sum(errors_5xx) / nullif(sum(answered), 0) AS value, sum(answered) AS samples
FROM cdn_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY ALL
"""


def test_a_rule_on_the_error_rate_fires_in_the_minute_it_should(waf: ShippedLake) -> None:
    """Above 10 % for three minutes, clear below 9 %: 13.19, 8.75, 14.68, 14.33, 14.62 and 13.61 % from 22:56 on."""
    rule = RuleSpec.model_validate(
        {
            "name": "origin_errors",
            "reads": ["cdn_minute"],
            "sql": "origin_errors.sql",
            "labels": ["cdn"],
            "min_samples": 500,
            "fire": {"above": 0.05},
            "clear": {"above": 0.03},
        }
    )
    (waf.catalog.folder("cdn_logs") / rule.sql).write_text(ERRORS_SQL)
    tried = with_overrides(rule, ["fire.above=0.1", "clear.above=0.09", "for_minutes=3", "min_samples=1"])

    result = backtest(
        waf.catalog,
        "cdn_logs",
        tried,
        since=dt.datetime(2026, 1, 11, 22, 56, tzinfo=dt.UTC),
        until=dt.datetime(2026, 1, 11, 23, 2, tzinfo=dt.UTC),
    )

    phases = [f"{minute_text(minute)[11:16]} {phase}" for minute, _, phase in result.phases]
    assert phases == ["22:56 pending", "22:57 ok", "22:58 pending", "22:59 pending", "23:00 firing", "23:01 firing"]
    (episode,) = result.episodes
    assert [minute_text(at)[11:16] for at in (episode.began, episode.fired)] == ["22:58", "23:00"]
    assert [(notification.kind, notification.subject) for notification in result.notifications] == [
        ("raised", "cdn_logs.origin_errors{cdn=waf}")
    ]


CDN_LOGS = PROJECT_ROOT / "include" / "pipelines" / "cdn_logs" / "pipeline.yaml"
STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")


def requests(logs: Path, lake: Path, *lines: str) -> list[dict[str, Any]]:
    """The rows of the real lines and of others below them."""
    for name in ("City", "ASN"):
        data = (logs.parent / "maxmind" / f"GeoLite2-{name}-Test.mmdb").read_bytes()
        LocalObjects(lake).put(paths.database(f"geo/GeoLite2-{name}.mmdb"), data)
    spec = load_spec(PipelineSpec, CDN_LOGS)
    databases = pin_databases(spec, local_storage(lake))
    data = gzip.decompress((logs / "sample-cloudfront-access-logs.gz").read_bytes()) + "\n".join(lines).encode()
    parts = list(Parser(spec, databases=databases).parse([Payload(1, "k", data)], STAMP))
    assert {name for name, _ in parts} == {"requests"}
    return [row for _, part in parts for row in part.to_pylist()]


@pytest.fixture
def client_rows(cloudfront_logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return requests(cloudfront_logs, tmp_path / "lake")


def test_the_rows_are_those_that_were_counted(client_rows: list[dict[str, Any]]) -> None:
    assert (len(client_rows), len({row["event_id"] for row in client_rows})) == (66, 66)
    assert len({row["network"] for row in client_rows}) == 3
    assert len({row["edge"][:3] for row in client_rows}) == 3
    assert sum(row["bytes"] for row in client_rows) == 81_303
    assert Counter(row["status"] for row in client_rows) == {"302": 63, "200": 3}
    assert Counter(row["result"] for row in client_rows) == {"Hit": 23, "Miss": 2, "LambdaGeneratedResponse": 41}
    assert Counter(row["event_time"].strftime("%H:%M") for row in client_rows) == {"00:11": 1, "00:12": 21, "00:13": 44}
    assert sum(row["is_bot"] for row in client_rows) == 41


def test_clients_have_their_country_and_provider(
    cloudfront_logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (line,) = [
        line
        for line in gzip.decompress((cloudfront_logs / "sample-cloudfront-access-logs.gz").read_bytes())
        .decode()
        .splitlines()
        if "3.120.138.129" in line
    ][:1]

    row = requests(cloudfront_logs, tmp_path / "lake", line.replace("3.120.138.129", "1.128.0.7"))[-1]
    other = requests(cloudfront_logs, tmp_path / "lake", line.replace("3.120.138.129", "81.2.69.142"))[-1]

    assert (row["network"], row["asn"], row["isp"]) == ("1.128.0.0", 1221, "Telstra Pty Ltd")
    assert (other["network"], other["country"], other["region"]) == ("81.2.69.0", "GB", "ENG")
