"""Paths on the API server, which may be served below a prefix."""

from __future__ import annotations

from urllib.parse import urlparse

from airflow.configuration import conf


def server_path(path: str) -> str:
    """A path on the API server, below whatever prefix it is served under."""
    prefix = urlparse(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{prefix}{path}"
