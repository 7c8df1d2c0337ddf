"""The operator console: running processes, open issues and actions. Airflow or a standalone process hosts it."""
