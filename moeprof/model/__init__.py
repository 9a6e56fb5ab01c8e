"""The bundled MoE transformer, trainable with every strategy."""
