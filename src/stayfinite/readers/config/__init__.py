"""Configurations as subjects: one file = one format; every key keeps its line and column; nothing is executed."""

from stayfinite.readers.config.nodes import UnreadableConfig
from stayfinite.readers.config.read import is_training_config, read_config

__all__ = ["UnreadableConfig", "is_training_config", "read_config"]
