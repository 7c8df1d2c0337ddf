"""A form is accepted only if the browser says that a page of this origin sent it."""

from __future__ import annotations

import pytest

from deltaworks.console.actions.routes import is_same_origin

HERE = {"host": "lake.example:8443"}


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({"origin": "https://lake.example:8443"}, True),
        ({"origin": "https://LAKE.example:8443", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "https://lake.example:8443.evil.example"}, False),
        ({"origin": "https://lake.example:8443@evil.example"}, False),
        ({"origin": "https://lake.example"}, False),
        ({"origin": "file://lake.example:8443"}, False),
        ({"origin": "https://["}, False),
        ({"origin": "https://evil.example", "sec-fetch-site": "same-origin"}, False),
        ({"origin": "https://lake.example:8443", "sec-fetch-site": "cross-site"}, False),
        ({"origin": "https://lake.example:8443", "sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "https://front.example", "x-forwarded-host": "front.example, inner"}, True),
    ],
)
def test_who_may_send_a_form(headers: dict[str, str], own: bool) -> None:
    assert is_same_origin(HERE | headers) is own
