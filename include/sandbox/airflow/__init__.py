"""Airflow on one machine: settings, database, executor and the start of its processes."""
