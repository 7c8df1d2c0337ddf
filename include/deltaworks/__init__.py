"""Deltaworks: a self-hosted telemetry lakehouse on Airflow, Spark and Delta tables."""

from __future__ import annotations

__version__ = "0.1.0"
