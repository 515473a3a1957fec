"""CUDA C++ kernels for NVIDIA GPUs: ``csrc/kernels``, shipped as machine code in ``fatbin/``."""
