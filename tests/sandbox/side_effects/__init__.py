"""Scripts that do something to the world while they train, and a way to see what they did to it."""
