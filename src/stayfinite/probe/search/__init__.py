"""The directed search: looks inside the declared range for an input on which a step is not finite."""
