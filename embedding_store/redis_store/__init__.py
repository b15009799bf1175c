"""The stock Redis or Valkey backend: hashes of row records, optimistic transactions, no modules, no scripts."""
