"""Tools that agents call, and what runs behind them."""
