"""Operations: what people and schedules ask of a pipeline, each declared once."""
