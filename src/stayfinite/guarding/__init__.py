"""The parts of the guard, one concept a file: the run, its updates, refusals and explanations, loops, maintenance."""
