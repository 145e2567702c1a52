"""Loggers: the guard's numbers and incidents in the tool that the rest of a run is logged to; one file a tool."""
