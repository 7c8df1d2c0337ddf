"""The operator console: what runs, what is wrong, what to press. Airflow or a process of its own hosts it."""
