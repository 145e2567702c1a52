"""Readers: one file = one format. They turn files into subjects that the rules examine."""
