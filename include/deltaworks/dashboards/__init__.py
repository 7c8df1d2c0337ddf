"""Declared dashboards: runs the queries of their panels over the lake and renders the page."""
