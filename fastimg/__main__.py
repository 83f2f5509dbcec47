"""`python -m fastimg`, for torchrun's sake."""

from .cli import main

main()
