"""The parameter server: table specs, the `EmbeddingStore` contract and its backends; and the model two rooms share."""
