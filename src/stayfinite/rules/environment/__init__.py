"""Rules of family ENV: the machine and its software."""
