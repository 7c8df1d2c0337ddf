"""Draws charts as SVG for pages without scripts: dashboards, reports, and the console."""
