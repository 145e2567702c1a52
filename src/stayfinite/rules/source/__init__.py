"""Rules on Python source: what goes into an operation, as far as it can be followed without running it."""
