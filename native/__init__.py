"""Numba kernels: arrays in, arrays out; no domain, no I/O."""
