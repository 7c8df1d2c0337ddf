"""The registry: every cause names a runbook page that exists, and no other cause can be raised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deltaworks.alerts.causes import CAUSES, SEVERITIES, Cause, cause_of, rank, register
from deltaworks.errors import ConfigError

DOCS = Path(__file__).resolve().parents[3] / "docs"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_there_are_causes() -> None:
    assert len(CAUSES) >= 15


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.name)
def test_every_cause_names_a_page_and_an_anchor_that_exist(cause: Cause) -> None:
    page, _, anchor = cause.runbook.partition("#")

    assert (DOCS / page).is_file(), cause.runbook
    assert anchor in anchors(DOCS / page), cause.runbook


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.name)
def test_every_cause_is_described_where_it_sends_people(cause: Cause) -> None:
    text = (DOCS / cause.runbook.partition("#")[0]).read_text()

    assert f"`{cause.name}`" in text
    assert cause.severity in SEVERITIES
    assert cause.notices_per_hour >= 2


def test_an_unknown_cause_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError) as refused:
        cause_of("STREAM_HUNGRY")

    assert refused.value.condition == "ALERT_CAUSE_UNKNOWN"
    assert "STREAM_HUNG" in refused.value.hint


def test_a_name_stands_for_one_cause() -> None:
    taken = CAUSES["STREAM_HUNG"]

    assert register(taken) is taken
    with pytest.raises(ValueError, match="registered already"):
        register(Cause(name="STREAM_HUNG", severity="info", runbook=taken.runbook, meaning="another"))


def test_severities_are_in_order() -> None:
    assert sorted(SEVERITIES, key=rank) == ["info", "warning", "critical"]
