"""Device functions that Triton kernels share."""
