"""`enrichment`: the cost of look-ups and masking in a task that lands log lines of a CDN.

Both implementations parse the same lines (26 tab-separated fields, as CloudFront logs them) and write the files of
their table. Deltaworks also looks up each client address in a database of cities and one of networks, parses its user
agent and masks three fields; the baseline does not. The cost depends on the number of lines per client:

- `viewers_vs_none`: 100 lines, a segment every six seconds of a ten-minute video;
- `pages_vs_none`: 25 lines, the objects of a page;
- `every_line_another_client`: one line, the worst case, since almost no look-up can be reused.

The databases are MaxMind's test databases in the folder DELTAWORKS_SHARED_DATA.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from deltaworks.events.chunks import Payload
    from deltaworks.specs.pipeline import PipelineSpec
    from deltaworks.specs.storage import StorageSpec

_LINES_PER_OBJECT = 50_000
#: Requests per client and visit, by metric; and the number of clients that visit at the same time.
_REQUESTS = {"viewers_vs_none": 100, "pages_vs_none": 25, "every_line_another_client": 1}
_LINES_PER_BATCH = 400
_FIELDS = (
    "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) "
    "cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken "
    "x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status "
    "fle-encrypted-fields"
)
_DATABASES = {"City.mmdb": "GeoLite2-City-Test.mmdb", "ASN.mmdb": "GeoLite2-ASN-Test.mmdb"}
_GEO = {"country": "country.iso_code", "region": "subdivisions.0.iso_code"}
_NET = {"asn": "autonomous_system_number", "isp": "autonomous_system_organization"}
_ENRICH = [
    {"name": "geo", "kind": "mmdb", "path": "c-ip", "database": "City.mmdb", "fields": _GEO},
    {"name": "net", "kind": "mmdb", "path": "c-ip", "database": "ASN.mmdb", "fields": _NET},
    {"name": "agent", "kind": "user_agent", "path": "cs(User-Agent)"},
]
_PRIVATE = [
    {"path": "c-ip", "keep": "network"},
    {"path": "x-forwarded-for", "keep": "network"},
    {"path": "cs(Cookie)", "keep": "nothing"},
]
_COLUMNS = {
    "edge": ("x-edge-location", "string"),
    "bytes": ("sc-bytes", "long"),
    "network": ("c-ip", "string"),
    "uri": ("cs-uri-stem", "string"),
    "status": ("sc-status", "int"),
    "result": ("x-edge-result-type", "string"),
    "seconds": ("time-taken", "double"),
}
_ANSWERS = {
    "country": ("_geo.country", "string"),
    "region": ("_geo.region", "string"),
    "asn": ("_net.asn", "long"),
    "isp": ("_net.isp", "string"),
    "browser": ("_agent.browser", "string"),
    "is_bot": ("_agent.is_bot", "boolean"),
}


def run(options: Options) -> list[Result]:
    """Measures the comparisons."""
    from benchmarks import storages
    from deltaworks.control import paths
    from deltaworks.control.objects import open_objects

    with storages.local_disk().new_root() as storage:
        for name, file in _DATABASES.items():
            open_objects(storage).put(paths.database(name), (_maxmind() / file).read_bytes())
        comparisons = []
        for metric, requests in _REQUESTS.items():
            payloads, clients = _payloads(options.events, requests)
            comparisons.append(
                Comparison(
                    metric=metric,
                    ours=Side(f"enriched_{requests}", partial(_land, storage, _spec(enriched=True), payloads)),
                    other=Side(f"none_{requests}", partial(_land, storage, _spec(enriched=False), payloads)),
                    sizes={"lines": options.events, "clients": clients, "user_agents": len(_AGENTS)},
                )
            )
        return measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)


def _maxmind() -> Path:
    return Path(os.environ.get("DELTAWORKS_SHARED_DATA", "")) / "maxmind"


def _unavailable() -> str | None:
    if _maxmind().is_dir():
        return None
    return f"{_maxmind()} does not exist: set DELTAWORKS_SHARED_DATA to the folder that contains `maxmind`"


def _spec(*, enriched: bool) -> PipelineSpec:
    from deltaworks.specs.pipeline import PipelineSpec

    columns = _COLUMNS | (_ANSWERS if enriched else {})
    declared: dict[str, Any] = {
        "pipeline": "bench",
        "description": "requests to a content delivery network",
        "owner": "benchmarks",
        "source": {"kind": "s3_sqs", "relay": "cdn", "bucket": "cdn", "format": "tsv", "tsv": {"null_values": ["-"]}},
        "event": {"name": {"constant": "request"}, "time": {"path": "datetime"}, "id": "x-edge-request-id"},
        "tables": [
            {
                "name": "requests",
                "catch_all": True,
                "columns": [{"name": name, "path": path, "type": kind} for name, (path, kind) in columns.items()],
            }
        ],
    }
    return PipelineSpec.model_validate(declared | ({"enrich": _ENRICH, "private": _PRIVATE} if enriched else {}))


_SYSTEMS = ("Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10_15_7", "X11; Linux x86_64")
_AGENTS = [
    quote(
        quote(f"Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{major}.0.{minor}.0 Safari/537.36")
    )
    for system in _SYSTEMS
    for major in range(100, 125)
    for minor in (0, 110, 156, 163)
]


def _payloads(lines: int, requests: int) -> tuple[list[Payload], int]:
    """Returns objects of log lines and the number of clients. A client's `requests` lines are interleaved with those of
    other clients.
    """
    from deltaworks.events.chunks import Payload

    drawn = random.Random(7)
    networks = [
        ipaddress.ip_network(network, strict=False)
        for item in json.loads((_maxmind() / "source-data" / "GeoLite2-City-Test.json").read_text())
        for network in item
    ]
    visits: list[list[str]] = []
    payloads, text, clients = [], [f"#Version: 1.0\n#Fields: {_FIELDS}"], set()
    for number in range(lines):
        if len(visits) < _LINES_PER_BATCH:
            network = drawn.choice(networks)
            address = str(network[drawn.randrange(min(network.num_addresses, 1 << 40))])
            clients.add(address)
            visits.append([address, drawn.choice(_AGENTS)] * requests)
        visit = visits[drawn.randrange(len(visits))]
        agent, address = visit.pop(), visit.pop()
        if not visit:
            visits.remove(visit)
        text.append(_line(drawn, number, address, agent))
        if len(text) > _LINES_PER_OBJECT or number == lines - 1:
            payloads.append(Payload(len(payloads) + 1, f"{len(payloads)}", "\n".join(text).encode()))
            text = text[:1]
    return payloads, len(clients)


def _line(drawn: random.Random, number: int, address: str, agent: str) -> str:
    result = drawn.choice(["Hit", "Hit", "Hit", "Miss", "RefreshHit", "Error"])
    size, seconds = drawn.randrange(300, 2_000_000), drawn.lognormvariate(-2, 1)
    return (
        f"2026-01-01\t{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}\tFRA53\t{size}\t{address}\tGET\t"
        f"d111111abcdef8.cloudfront.net\t/video/{drawn.randrange(5_000)}/segment{number % 400}.ts\t200\t-\t{agent}\t-\t"
        f"session={number % 9973}\t{result}\t{drawn.getrandbits(192):048x}\td111111abcdef8.cloudfront.net\thttps\t337\t"
        f"{seconds:.3f}\t-\tTLSv1.3\tTLS_AES_128_GCM_SHA256\t{result}\tHTTP/2.0\t-\t-"
    )


def _land(storage: StorageSpec, spec: PipelineSpec, payloads: list[Payload], clock: Clock) -> None:
    """Runs a task's work on all lines, without Spark."""
    from deltaworks.engine.fan_out import partition_columns, write_payloads
    from deltaworks.engine.writers import FileTarget
    from deltaworks.events.chunks import BatchMetadata
    from deltaworks.events.parse import ParserInputs

    folders = {name: f"{time.time_ns()}/{name}" for name in partition_columns(spec)}
    target = FileTarget.of(storage, folders, partition_by=partition_columns(spec))
    stamp = BatchMetadata(0, 1_767_225_600_000_000, spec.fingerprint())
    cpu = time.process_time()
    with clock:
        output = write_payloads(payloads, spec, stamp, target, inputs=ParserInputs.pin(spec, storage))
    lines = sum(payload.data.count(b"\n") - 1 for payload in payloads if payload.data is not None)
    landed = sum(file.rows for file in output.files["requests"])
    if landed != lines:
        raise RuntimeError(f"{landed} of {lines} lines landed: {output.findings}")
    clock.record(cpu_microseconds_per_line=(time.process_time() - cpu) * 1e6 / lines)


BENCHMARK = Benchmark(
    name="enrichment",
    summary="landing CDN log lines with look-ups and masking, against landing them unchanged",
    run=run,
    tiny=TinySize(),
    unavailable=_unavailable,
)
