"""Python source as a subject: read as text, parsed, followed by a small abstract interpreter; nothing executed."""

from stayfinite.readers.source.read import UnreadableSource, read_source, read_text

__all__ = ["UnreadableSource", "read_source", "read_text"]
