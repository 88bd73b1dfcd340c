"""`python -m scale_disco` is `disco`."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
