"""Dispatch and combine: operations, their gradients, primitives and lowering."""
