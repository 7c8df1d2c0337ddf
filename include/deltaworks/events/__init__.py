"""Parsing: splits payloads into events, routes and converts them to typed columns, and gives reasons for
rejected ones."""
