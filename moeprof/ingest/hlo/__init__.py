"""Compiled programs: what an HloProto says of instructions, buffers and memory."""
