"""Rules on configurations: what a setting says, what it contradicts, and whether anything reads it."""
