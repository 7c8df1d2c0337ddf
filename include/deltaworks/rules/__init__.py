"""Rules on answers: what they observe, how their minutes are judged, and what people are told of it."""
