"""What fits before anything runs: memory, time and pipeline of a model on a plan.

Closed forms answer from specifications and numpy alone. `moeprof.projector.compiled` and
`moeprof.projector.any_step` ask XLA's compiler instead and are the only parts that need JAX.
"""
