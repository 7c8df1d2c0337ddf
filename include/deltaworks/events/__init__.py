"""Parsing: splits payloads into events, routes events to tables and converts them to typed columns.

Rejected events get a reason and go to quarantine.
"""
