"""IP addresses are truncated to networks."""

from __future__ import annotations

import pytest

from deltaworks.privacy.tokens.redactor import truncate_ip


@pytest.mark.parametrize(
    ("address", "cut"),
    [
        ("203.0.113.77", "203.0.113.0"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
        ("::ffff:203.0.113.77", "203.0.113.0"),
        ("2002:cb00:714d::1", "2002:cb00:7100::"),
        ("[2001:db8::1]", "2001:db8::"),
        (" 203.0.113.77 ", "203.0.113.0"),
        ("203.0.113.77, 198.51.100.9", "203.0.113.0"),
        ("fe80::1%eth0", "fe80::"),
        ("203.0.113.77:51234", "203.0.113.0"),
        ("203.0.113.77:51234, 198.51.100.9:80", "203.0.113.0"),
        ("[2001:db8::1]:443", "2001:db8::"),
        ("[fe80::1%25eth0]:443", "fe80::"),
        ("[fe80::1%eth0]:443", "fe80::"),
        ("[::ffff:203.0.113.77]:443", "203.0.113.0"),
        ("unknown, 203.0.113.77", None),
        ("203.0.113.77/24", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_an_address_keeps_only_its_network(address: str, cut: str | None) -> None:
    assert truncate_ip(address) == cut
