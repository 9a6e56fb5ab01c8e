"""The bundled MoE transformer, trainable with every strategy.

Start at `moeprof.model.train`: `make_job`, `init_state`, `make_step`. examples/train_moe.py uses
all three.
"""
