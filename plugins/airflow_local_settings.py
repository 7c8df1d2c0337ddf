"""Airflow runs this file at the start of each of its processes: what is unsafe outside `local` ends it here."""

from __future__ import annotations

from deltaworks.airflow.deployment import check_deployment

__all__: list[str] = []

check_deployment()
