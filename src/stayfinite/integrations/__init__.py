"""One file = one framework; imported by the user, never by us."""
