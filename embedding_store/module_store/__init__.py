"""The module's backend: one Redis key per shard, whose data type optimizes, evicts and tells changes by itself."""
