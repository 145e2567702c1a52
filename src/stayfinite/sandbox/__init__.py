"""Running code a second time where the kernel sees to it that nothing outside is changed.

`fork.forked(fn, seconds)` repeats a piece of the present process in a child; `process.run(command)` starts a command.
Imports nothing of ours but the vocabulary, and torch only where it is loaded already.
"""
