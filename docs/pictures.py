"""The former name of figures.py, kept so that commands with it still run."""

from figures import main

if __name__ == "__main__":
    main()
