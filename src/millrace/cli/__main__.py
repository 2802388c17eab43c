"""`python -m millrace.cli`."""

from millrace.cli import main

if __name__ == "__main__":
    main()
