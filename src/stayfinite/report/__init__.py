"""What a person or a program reads: one file = one output."""
