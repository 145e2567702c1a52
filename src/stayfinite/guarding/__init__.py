"""The parts of the guard: checking its arguments, the audit, the state of health, ordinary loops, saving."""
