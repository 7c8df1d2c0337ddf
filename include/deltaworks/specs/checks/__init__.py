"""Checks of all specs and SQL files of a project, which report the errors of all files."""
