"""Rules about a model before its training: what `stayfinite probe` measured."""
