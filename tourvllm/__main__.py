"""`python -m tourvllm`."""

from .cli import main

main()
