"""Compares the rows of the engagement pipeline with the generator's own replay."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from generator.engagement_truth import EngagementTruth


class EngagementTables(Protocol):
    """The events sent to a pipeline, and its table rows."""

    @property
    def truth(self) -> EngagementTruth:
        """Returns the expected rows after all sent requests."""

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Returns all rows of a table."""


def arrived(truth: EngagementTruth) -> Counter[tuple[str, str, str]]:
    rows = truth.rows.to_pylist()
    return Counter(
        {(row["org_id"], row["event_id"], row["origin_contact_id"]): row["copies"] for row in rows if row["copies"]}
    )


def ended(truth: EngagementTruth) -> Counter[tuple[Any, ...]]:
    rows = truth.rows.to_pylist()
    names = ("org_id", "event_id", "origin_contact_id", "contact_id", "template_id", "deleted")
    return Counter({tuple(row[name] for name in names): row["copies"] for row in rows})


def told(platform: EngagementTables) -> Counter[tuple[str, int, str]]:
    """Returns organisation, batch and key of each row of the stream's notifications."""
    return Counter(
        (row["org_id"], row["batch"], key)
        for row in platform.rows("notifications")
        if row["batch_kind"] == "stream"
        for key in row["keys"]
    )


def check_landed(platform: EngagementTables) -> None:
    """Checks that every row has landed unchanged and was announced once."""
    rows, truth = platform.rows("activities"), platform.truth
    assert Counter((row["org_id"], row["event_id"], row["origin_contact_id"]) for row in rows) == arrived(truth)
    assert len(platform.rows("requests")) == truth.requests
    assert len(platform.rows("quarantine")) == truth.malformed
    assert told(platform) == Counter((row["org_id"], row["_batch_id"], row["engagement_id"]) for row in rows)
    dates = {row["engagement_id"]: row["engagement_date"] for row in rows}
    for row in platform.rows("notifications"):
        assert {dates[key] for key in row["keys"]} == {row["engagement_date"]}


def check_mutated(platform: EngagementTables) -> None:
    """Checks every row and name against a replay in order."""
    rows, truth = platform.rows("activities"), platform.truth
    columns = ("org_id", "event_id", "origin_contact_id", "contact_id", "template_id")
    found = Counter((*(row[name] for name in columns), bool(row["_deleted"])) for row in rows)
    wanted = ended(truth)
    assert found == wanted, (list((found - wanted).items())[:3], list((wanted - found).items())[:3])
    names = {(row["org_id"], row["id"]): row["name"] for row in platform.rows("names") if not row["_deleted"]}
    assert names == {(row["org_id"], row["id"]): row["name"] for row in truth.names.to_pylist()}
