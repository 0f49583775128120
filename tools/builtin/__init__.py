"""Tools that come with turnwise: calculator, python, search and submit."""
