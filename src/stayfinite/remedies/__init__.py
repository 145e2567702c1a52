"""Remedies: one file = one remedy, told to a person and applicable to a replay at the place of the birth."""
