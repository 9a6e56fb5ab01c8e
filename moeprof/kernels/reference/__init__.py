"""Slow twins of the kernels in plain jnp and NumPy: the definition that the tests hold to."""
