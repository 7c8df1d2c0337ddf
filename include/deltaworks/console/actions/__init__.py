"""What a person can press: a form made from a DAG's own params, a run started in their name, and what it left."""
