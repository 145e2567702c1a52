"""Vitals: on a sampled step, how large the signal is in every module, and how fast the weights move."""
