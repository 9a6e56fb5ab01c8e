"""Which buffers of a program hold tokens of the MoE layer."""
