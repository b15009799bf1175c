"""The parameter server: table specs, the `EmbeddingStore` contract, its backends, and the model that trainer and serving share."""
