"""Paths on the API server, including its path prefix."""

from __future__ import annotations

from urllib.parse import urlparse

from airflow.configuration import conf


def server_path(path: str) -> str:
    """Returns a path on the API server with its path prefix."""
    prefix = urlparse(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{prefix}{path}"
