"""Kafka bytes to typed columns; sources, codecs, dead letters. Knows no model."""
