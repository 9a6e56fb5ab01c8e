"""moeprof: where a Mixture-of-Experts training step in JAX goes, and why."""

__version__ = "0.1.0"
