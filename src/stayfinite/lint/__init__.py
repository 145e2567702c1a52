"""`stayfinite lint`: find the files, read them, examine them, and mend what has an exact stable form."""
