"""Rules of family STA: the state a training run starts from and carries along."""
