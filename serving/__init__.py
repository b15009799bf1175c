"""The HTTP service: answers from the store, never writes."""
