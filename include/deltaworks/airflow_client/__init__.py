"""The client of Airflow's REST API, for commands, tasks, the console and the embedded stack."""
