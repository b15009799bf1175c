"""`towline backtest`: a recorded stream through the very code that a trainer runs, each event tested, then learned."""
