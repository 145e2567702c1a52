"""Rules of family RUN: the run as a whole."""
