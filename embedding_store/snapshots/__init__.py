"""Snapshots of a store in files: taken beside running trainers, restored with a rewind of the stream."""
