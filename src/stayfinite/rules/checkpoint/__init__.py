"""CKP: what can be wrong with a checkpoint. One file = one rule."""
