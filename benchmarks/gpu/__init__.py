"""Question: how fast, how large and how right are kernels and training steps on GPUs?

`benchmarks/gpu.sh` runs these programs part by part; each also runs by itself, by its path.
"""
