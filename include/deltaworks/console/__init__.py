"""The operator console: processes with their health, open issues, and actions. Hosted by Airflow or a standalone
process.
"""
