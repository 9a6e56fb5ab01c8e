"""What fits before anything runs: memory, time and pipeline of a model on a plan.

Closed forms answer from specifications and numpy alone. `moeprof.projector.compiled` asks XLA's
compiler instead and is the only part that needs JAX.
"""
