"""Actions of the console: forms built from a DAG's params, runs started in the user's name, and their results."""
