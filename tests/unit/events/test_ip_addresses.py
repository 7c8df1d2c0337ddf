"""IP truncation compared with a slow implementation, and user agents: URL decoding and parsing."""

from __future__ import annotations

import gzip
import ipaddress
from collections import Counter
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import ua_parser
from hypothesis import example, given
from hypothesis import strategies as st

from deltaworks.events.lookups_and_masks import MAX_CHARACTERS, parse_user_agent, url_decode
from deltaworks.privacy.tokens.redactor import format_ip, parse_ip, truncate_ip
from deltaworks.specs.enrich import USER_AGENT_FIELDS

IPV4 = st.ip_addresses(v=4)
IPV6 = st.ip_addresses(v=6)
#: Addresses inside others, where a careless mask keeps them whole.
INSIDE = st.one_of(
    IPV4.map(lambda inner: ipaddress.IPv6Address(f"::ffff:{inner}")),
    IPV4.map(lambda inner: ipaddress.IPv6Address(f"::{inner}")),
    IPV4.map(lambda inner: ipaddress.IPv6Address(f"64:ff9b::{inner}")),
    st.tuples(IPV4, st.integers(0, 2**80 - 1)).map(
        lambda parts: ipaddress.IPv6Address((0x2002 << 112) | (int(parts[0]) << 80) | parts[1])
    ),
)
ADDRESSES = st.one_of(IPV4, IPV6, INSIDE)


def forms(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> st.SearchStrategy[str]:
    """The ways an address is written."""
    texts = [str(address), address.exploded, str(address).upper(), f" {address} ", f"[{address}]", f"[{address}]:443"]
    if isinstance(address, ipaddress.IPv4Address):
        texts += [f"{address}:51234", f"{address}:51234, 198.51.100.9:80"]
    else:
        texts += [f"[{address}%eth0]:443", f"[{address}]:443,unknown"]
        texts.append(f"{address}%eth0")
        texts.append(f"{ipaddress.IPv6Address(int(address) & ~0xFFFFFFFF)}"[:39])
    return st.sampled_from(texts)


def inside(address: ipaddress.IPv4Address, rest: int) -> tuple[str, str]:
    """An IPv4 address mapped into IPv6, and as the client of a 6to4 relay."""
    return f"::ffff:{address}", str(ipaddress.IPv6Address((0x2002 << 112) | (int(address) << 80) | rest))


def without_port(entry: str) -> str:
    """An entry without a port of digits and without brackets around it."""
    if entry.startswith("[") or entry.count(":") == 1:
        address, colon, port = entry.rpartition(":")
        if (
            colon
            and port
            and len(port) <= 5
            and set(port) <= set("0123456789")
            and (entry[0] != "[" or address[-1:] == "]")
        ):
            entry = address
    if entry[:1] == "[" and entry[-1:] == "]" and not any(map(str.isspace, entry)):
        entry = entry[1:-1]
    return entry


def slowly(text: str) -> str | None:
    """The network of an address as `ipaddress` has it, number by number."""
    try:
        address = ipaddress.ip_address(without_port(text.split(",", maxsplit=1)[0].strip()))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        address = ipaddress.IPv6Address(int(address))
        address = address.ipv4_mapped or address
    if isinstance(address, ipaddress.IPv4Address):
        return str(ipaddress.ip_network((int(address), 24), strict=False).network_address)
    bits = 40 if address.sixtofour is not None else 48
    return str(ipaddress.ip_network((int(address), bits), strict=False).network_address)


@given(ADDRESSES.flatmap(forms))
@example("FE80::0202:B3FF:FE1E:8329")
@example("2002:cb00:7107::1")
@example("::ffff:203.0.113.7")
@example("::FFFF:0:0")
def test_any_notation_of_an_address_is_truncated_to_its_network(text: str) -> None:
    assert truncate_ip(text) == slowly(text)


@given(st.one_of(st.text(), st.text("0123456789abcdefABCDEF:.%,[]/ x\x00"), ADDRESSES.map(lambda one: f"{one}/24")))
@example("x.x.x.x")
@example("")
@example("01.2.3.4")
@example("1.2.3")
@example("1.2.3.4:443")
@example("[::1]")
@example("[::1")
@example("[::1]:")
@example("[::1]:123456")
@example("[1.2.3.4]:80")
@example("::1:443")
@example("::ffff:1.2.3.4:443")
@example("1.2.3.4:")
@example("1.2.3.4:80:80")
@example("[fe80::1%eth0]:80")
@example("[[::1]]")
@example("fe80::1%")
@example("fe80::1%a%b")
@example("1.2.3.4%eth0")
@example("\uff11.2.3.4")
@example("\udc80")
@example("::1\x00")
def test_texts_are_addresses_as_the_standard_library_has_them(text: str) -> None:
    assert truncate_ip(text) == slowly(text)


@given(ADDRESSES, st.lists(ADDRESSES, min_size=1, max_size=3))
def test_the_first_entry_of_a_list_counts(first: object, others: list[object]) -> None:
    assert truncate_ip(", ".join(map(str, [first, *others]))) == truncate_ip(str(first))


@given(ADDRESSES)
def test_truncation_is_idempotent(address: object) -> None:
    once = truncate_ip(str(address))

    assert once is not None
    assert truncate_ip(once) == once


@given(IPV4, st.integers(0, 2**80 - 1))
def test_embedded_ipv4_addresses_lose_their_last_octet(inner: ipaddress.IPv4Address, rest: int) -> None:
    neighbour = ipaddress.IPv4Address(int(inner) ^ 0xFF)
    for one, other in zip(inside(inner, rest), inside(neighbour, rest), strict=True):
        assert truncate_ip(one) == truncate_ip(other)


@given(ADDRESSES)
def test_formatting_and_parsing_an_address_round_trips(address: object) -> None:
    address_bytes = parse_ip(str(address))

    assert address_bytes is not None
    assert parse_ip(format_ip(address_bytes)) == address_bytes


@pytest.mark.parametrize(
    ("name", "addresses", "networks"),
    [("sample-cloudfront-access-logs.gz", 3, 3), ("cf-access-log-sample.gz", 15_596, 15_591)],
)
def test_networks_of_real_logs_match_the_known_counts(
    cloudfront_logs: Path, name: str, addresses: int, networks: int
) -> None:
    lines = gzip.decompress((cloudfront_logs / name).read_bytes()).decode().splitlines()
    texts = {line.split("\t")[4] for line in lines if line and not line.startswith("#")}

    assert len(texts) == addresses
    assert len({truncate_ip(text) for text in texts}) == networks
    assert None not in {truncate_ip(text) for text in texts}


def test_a_log_that_was_masked_by_its_owner_has_no_network(cloudfront_logs: Path) -> None:
    data = (cloudfront_logs / "E3HXCM7PFRG6HT.2023-04-24-21.d740d76bCloudFront.gz").read_bytes()
    lines = [line for line in gzip.decompress(data).decode().splitlines() if not line.startswith("#")]

    assert [truncate_ip(line.split("\t")[4]) for line in lines] == [None] * 152


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
