"""The Redis module. Its table structure is C11 that knows nothing of Redis; see table.h."""
