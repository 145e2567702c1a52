"""Rules of family PRJ: what configuration, source, launcher, logs and checkpoints of a project say together."""
