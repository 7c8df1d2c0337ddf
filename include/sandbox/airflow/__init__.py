"""Airflow on one machine: settings, database and the start of its processes."""
