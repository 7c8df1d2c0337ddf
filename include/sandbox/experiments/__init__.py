"""Layouts of a table, measured with sizes of one's own."""
