"""The health of tables from their Delta logs: measured, scored, kept over time, reported."""
