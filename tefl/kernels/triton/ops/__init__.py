"""Triton implementations of the ops, one file a family."""
