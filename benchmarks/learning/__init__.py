"""`make bench-learning`: the shipped model and its peers over the same streams, event by event, by one protocol."""
