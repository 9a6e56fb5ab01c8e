"""What the compiler itself lays out for a training step, on devices that are not there.

`plan.plan` compiles any step for N GPUs on a machine without one, `bundled.compile_bundled` the
bundled model's. The compiler runs in a process of its own, the only one that imports JAX.
"""
