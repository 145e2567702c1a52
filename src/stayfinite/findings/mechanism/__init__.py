"""How a bad value came about: one typed mechanism per birth, classified once; rules put it into words."""
