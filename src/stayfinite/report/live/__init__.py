"""A run while it goes on: followed on disk, shown in browsers and on a terminal. Reads only."""
