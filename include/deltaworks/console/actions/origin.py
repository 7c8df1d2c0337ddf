"""Whether a form was sent by a page of this server: Airflow checks no origin, and a cookie goes with every request."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page of this very origin sent the request.

    `Sec-Fetch-Site` is sent where a page is secure, `Origin` with every POST; no page can write either. What has
    neither was not sent by a browser's form, and one that is wrong is enough. A proxy that passes the host on as
    `X-Forwarded-Host` is taken into account: no form can set that header.
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
