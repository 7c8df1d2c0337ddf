"""Puts files into landing buckets as producers would: split where events end, compressed, named, each once."""
