"""Operations that people and schedules run on a pipeline, relay or namespace. Each is declared once, in the
registry."""
