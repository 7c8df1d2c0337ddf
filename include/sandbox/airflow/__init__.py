"""Airflow on one machine: settings, database and process start."""
