"""What a run left on disk, read as it is (half-written, rotated, hostile) and reduced to what a page can draw."""
