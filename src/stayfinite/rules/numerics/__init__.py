"""Rules of family NUM: the numerics of one step, judged by what the tracer measured where a value was born."""
