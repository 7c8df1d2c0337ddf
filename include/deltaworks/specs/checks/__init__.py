"""Checks of all specs and SQL files of a project, which report all errors at once."""
