"""Triton implementations of the ops, one file a family."""

from tefl.kernels.spec import spec_path

spec_path(__path__)
