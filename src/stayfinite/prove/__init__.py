"""Proof: candidate remedies are tried on the replay, beside a control arm, and the one that works is shown."""
