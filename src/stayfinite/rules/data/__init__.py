"""Rules of family DAT: the data a step was given."""
