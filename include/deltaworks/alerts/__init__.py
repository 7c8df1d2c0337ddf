"""Alerts: raised and resolved here, notified at most so often, delivered by channels. Without Spark or Airflow."""

from __future__ import annotations

from deltaworks.alerts.raising import raise_alert, resolve_alert

__all__ = ["raise_alert", "resolve_alert"]
