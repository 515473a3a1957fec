"""What the vendor ACME changes in tefl's Triton kernels; all of it is in the folder ``spec``."""
