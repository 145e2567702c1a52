"""`python -m stayfinite` is the same as the command `stayfinite`."""

from stayfinite.cli import main

if __name__ == "__main__":
    main()
