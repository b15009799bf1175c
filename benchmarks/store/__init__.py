"""What the store costs: `make bench-store`. Beside it, by turns: a floor, stock Redis, TFRA's commands."""
