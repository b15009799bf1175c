"""`python -m infra`: the same as `towline`, for processes that start each other."""

from infra.cli import main

main()
