"""`towline backtest`: a recorded stream through the very code that a trainer runs, tested event by event, then learned."""
