"""The examples of docs/how-to/feed-other-systems.md and docs/how-to/remediate.md work as written."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.feeds.process import Feed
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.project import load_catalog
from deltaworks.testing import RELAY, environment_spec, write_project
from tests.unit.feeds.feed_harness import DAY, Receiver

DOCS = Path(__file__).resolve().parents[3] / "docs"


def examples(page: str, kind: str, *, language: str = "yaml") -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"<!-- example: {kind}[^>]*-->\n```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The pipeline `orders` of docs/contributing/extending.md, with its gold table and the feed of
    docs/how-to/feed-other-systems.md."""
    (pipeline,) = examples("contributing/extending.md", "pipeline")
    (gold,) = examples("contributing/extending.md", "gold")
    (sql,) = examples("contributing/extending.md", "gold", language="sql")
    (feed,) = examples("how-to/feed-other-systems.md", "feed")
    relay, files = RELAY | {"buckets": ["deltaworks-landing"]}, {"pipelines/orders/gold/turnover.sql": sql}
    return write_project(tmp_path, pipeline + gold + feed, relays=[relay], files=files)


def test_the_feed_of_the_page_sends_the_message_of_the_page(project: Path) -> None:
    assert check_project("local", root=project).errors == []
    catalog = load_catalog("local", root=project)
    spec = catalog.pipeline("orders")
    rows = pa.table(
        {
            "event_date": pa.array([DAY], pa.date32()),
            "country": ["NL"],
            "orders": pa.array([2], pa.int64()),
            "turnover": pa.array([Decimal("19.00")], pa.decimal128(22, 2)),
        }
    )
    write_deltalake(f"{project}/lake/{paths.table('orders', 'turnover')}", rows, partition_by=["event_date"])
    receiver = Receiver()
    Feed(catalog, spec, spec.feeds[0], open_objects(catalog.environment.lake), receiver).run_once()
    (sent,) = receiver.messages
    (shown,) = (json.loads(text) for text in examples("how-to/feed-other-systems.md", "message", language="json"))
    assert list(sent) == list(shown)
    changing = {"id", "number", "at"}
    assert {name: value for name, value in sent.items() if name not in changing} == {
        name: value for name, value in shown.items() if name not in changing
    }
    assert [len(sent["id"]), type(sent["number"]), len(sent["at"])] == [len(shown["id"]), int, len(shown["at"])]


def test_the_remediation_of_its_page_can_be_declared(tmp_path: Path) -> None:
    (declared,) = examples("how-to/remediate.md", "remediation")
    (remediation,) = environment_spec(tmp_path, **yaml.safe_load(declared)).remediations
    assert (remediation.name, remediation.dry_run) == ("shift_cdn", True)
