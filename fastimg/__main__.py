"""The `fastimg` command, also as `python -m fastimg` for torchrun's sake."""

import gc


def main() -> None:
    """Run the command line. Imports create no garbage: the collector waits until a command starts."""
    gc.disable()
    from .cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
