"""Everything Airflow: DAG factories, operators, retry policies, links. Builds on specs and control alone."""
