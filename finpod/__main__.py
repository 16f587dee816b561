"""Entry point of `python -m finpod`."""

from finpod.cli import main

if __name__ == "__main__":
    main()
