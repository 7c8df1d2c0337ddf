"""Alerts: raising and resolving them, rate limits of notifications, and channels. Needs neither Spark nor Airflow."""

from __future__ import annotations

from deltaworks.alerts.raising import raise_alert, resolve_alert

__all__ = ["raise_alert", "resolve_alert"]
