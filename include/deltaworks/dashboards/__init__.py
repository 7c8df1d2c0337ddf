"""Declared dashboards: runs the panels' queries over the lake and renders the page."""
