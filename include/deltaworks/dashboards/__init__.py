"""Declared dashboards: their panels' questions asked of the lake, and the page that shows the answers."""
