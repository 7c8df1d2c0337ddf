"""The Airflow integration: DAG factories, operators, executor, retry policies, links and the console's host."""
