"""What is declared: pipelines, tables, gold, relays, environments. Imports neither pyspark nor airflow."""
