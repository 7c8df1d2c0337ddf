"""Rejects unsafe configuration outside `local`. Airflow runs this file at the start of each of its processes."""

from __future__ import annotations

from deltaworks.airflow.deployment import check_deployment

__all__: list[str] = []

check_deployment()
