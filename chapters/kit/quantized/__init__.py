"""Weights of 4 and 8 bits: how they are stored, unpacked in a kernel, and multiplied without a float copy."""
