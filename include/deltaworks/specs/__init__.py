"""Declarative specs: pipelines, tables, gold, relays, environments. Imports neither pyspark nor airflow."""
