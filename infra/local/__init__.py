"""The local stack: the servers and services that the configuration does not point to, as plain processes."""
