"""Checks that a form was sent by a page of this server: Airflow checks no origin, and cookies are sent with every
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Returns whether the browser's headers say that a page of this origin sent the request.

    Browsers send `Sec-Fetch-Site` on secure pages and `Origin` with every POST; scripts can set neither. A request
    without both was not sent by a browser form. One wrong header is enough to reject the request. A proxy may pass the
    host as `X-Forwarded-Host`, which no form can set.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return False
    if site is not None and site != "same-origin":
        return False
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip()
    hosts = {host.lower() for host in (headers.get("host", ""), forwarded) if host}
    return parts.scheme in ("http", "https") and parts.netloc.lower() in hosts
