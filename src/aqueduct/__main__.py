"""``python -m aqueduct``: the same as the command ``aqueduct``."""

from aqueduct.cli.main import main

if __name__ == "__main__":
    main()
