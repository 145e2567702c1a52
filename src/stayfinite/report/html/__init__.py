"""The page: one self-contained HTML file that needs no network and runs nothing but its own script."""
