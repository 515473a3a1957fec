"""Portable Triton kernels: this project's defaults."""
