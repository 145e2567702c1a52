"""Rules about training logs."""
