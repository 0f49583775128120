"""search-qa: questions about people who do not exist, answered by searching."""
