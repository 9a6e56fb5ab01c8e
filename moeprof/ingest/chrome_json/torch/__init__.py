"""What PyTorch's profiler tells beside device work: the host's ops, and which of them launched it.

A kernel is of the op that launched it, the op of the modules, functions and annotations around it;
a backward op is of those around the forward op with the same sequence number. Every such op becomes
an instruction of one program, so that all that is asked of JAX's programs can be asked of it.
"""
