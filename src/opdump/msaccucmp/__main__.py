"""`python -m opdump.msaccucmp`."""

from opdump.msaccucmp import main

if __name__ == "__main__":
    main()
