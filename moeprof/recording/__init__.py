"""Run user code under the JAX profiler and write a run folder."""
