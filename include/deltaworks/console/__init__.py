"""The operator console: what runs, what is wrong, what to press. One application; Airflow or a process of its own hosts it."""
