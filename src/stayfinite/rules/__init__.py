"""One file, one rule, one permanent code; found by walking this package."""
