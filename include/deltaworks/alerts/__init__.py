"""Alerts: what is raised and resolved, when it is told, how it reaches people. Imports neither Spark nor Airflow."""

from __future__ import annotations

from deltaworks.alerts.raising import raise_alert, resolve_alert

__all__ = ["raise_alert", "resolve_alert"]
