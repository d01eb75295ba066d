"""``python -m dpltm``: the commands, where no script is on the path."""

from dpltm.cli.main import main

if __name__ == "__main__":
    main()
