"""Valid feed declarations, and errors of invalid ones with their position."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.feeds.feed_harness import declared


@pytest.mark.parametrize(
    ("feed", "text"),
    [
        ({"reads": "turnovr"}, "did you mean 'turnover'"),
        ({"reads": "placed"}, "is not a gold table or view"),
        ({"from": "yesterday"}, "'now' or 'all'"),
        ({"key": []}, "at least 1"),
        ({"key": ["country", "country"]}, "named twice"),
        ({"columns": ["country"]}, "in the key"),
        ({"name": "x" * 51}, "at most 50 characters"),
        ({"to": {"kind": "webhook", "url": "ftp://x"}}, "https://"),
        ({"to": {"kind": "webhook", "url": "https://x", "token": "secret"}}, "references, env:NAME"),
        (
            {
                "to": {
                    "kind": "kafka",
                    "bootstrap_servers": "x:9092",
                    "topic": "t",
                    "security": {"protocol": "SSL", "truststore": "/x", "truststore_type": "JKS"},
                }
            },
            "PEM",
        ),
    ],
)
def test_an_invalid_feed_is_rejected_with_a_suggestion(feed: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        declared(feed)


def test_the_start_of_a_feed_is_required() -> None:
    feed = declared().feeds[0].model_dump(mode="json")
    del feed["from"]
    with pytest.raises(ValidationError, match="from"):
        declared(feeds=[feed])


def test_two_feeds_with_one_name_are_rejected() -> None:
    feed = declared().feeds[0].model_dump(mode="json")
    with pytest.raises(ValidationError, match="rename one"):
        declared(feeds=[feed, feed])
