"""Which instruction, execution and step each piece of a process's work is of."""
