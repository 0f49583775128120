"""Tools that come with turnwise."""
