"""User agents: URL decoding and parsing."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import ua_parser
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.events.enrichment.user_agents import MAX_CHARACTERS, parse_user_agent, url_decode
from deltaworks.specs.enrich import USER_AGENT_FIELDS

FIREFOX = "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:61.0) Gecko/20100101 Firefox/61.0"


@pytest.mark.parametrize("text", [FIREFOX, quote(FIREFOX), quote(quote(FIREFOX))])
def test_a_user_agent_is_the_same_however_often_a_log_encoded_it(text: str) -> None:
    assert parse_user_agent(text) == {
        "browser": "Firefox",
        "browser_version": "61.0",
        "os": "Windows",
        "os_version": "10",
        "device": None,
        "brand": None,
        "model": None,
        "is_bot": False,
    }


def test_a_third_encoding_is_left_as_it_is() -> None:
    assert url_decode(quote(quote(quote("a b")))) == quote("a b")


def test_an_empty_text_has_no_result() -> None:
    assert parse_user_agent("") is None
    assert parse_user_agent("%20") is None


@given(st.text() | st.text(st.characters(), min_size=1).map(lambda text: text + "\udcff%ff%zz"))
def test_any_text_gives_a_result_or_none(text: str) -> None:
    answer = parse_user_agent(text)

    assert answer is None or tuple(answer) == USER_AGENT_FIELDS


def test_long_texts_are_parsed_up_to_the_limit() -> None:
    assert parse_user_agent(FIREFOX + "x" * 1_000_000) == parse_user_agent((FIREFOX + "x" * 1_000_000)[:MAX_CHARACTERS])


@pytest.mark.parametrize(
    ("name", "rows", "changed", "bots"),
    [("cf-access-log-sample.gz", 28_949, 5_785, 8_572), ("sample-cloudfront-access-logs.gz", 66, 1, 41)],
)
def test_real_logs_match_the_known_families_and_bots(
    cloudfront_logs: Path, name: str, rows: int, changed: int, bots: int
) -> None:
    lines = gzip.decompress((cloudfront_logs / name).read_bytes()).decode().splitlines()
    agents = Counter(line.split("\t")[10] for line in lines if line and not line.startswith("#"))

    answers = {text: parse_user_agent(text) or {} for text in agents}

    def once(text: str) -> str | None:
        browser = ua_parser.parse(unquote(text)).user_agent
        return browser.family if browser else None

    assert sum(agents.values()) == rows
    assert sum(count for text, count in agents.items() if answers[text]["browser"] != once(text)) == changed
    assert sum(count for text, count in agents.items() if answers[text]["is_bot"]) == bots


def test_the_fast_matchers_are_used() -> None:
    assert ua_parser.BestAvailableResolver is ua_parser.RegexResolver is not None
