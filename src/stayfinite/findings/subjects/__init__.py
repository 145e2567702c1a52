"""What rules examine, as plain data: one file = one kind of subject. None of them needs torch."""
