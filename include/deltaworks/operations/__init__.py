"""Operations that people and schedules run on a pipeline, each declared once."""
