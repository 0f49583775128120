"""search-qa: questions about invented people, answered by searching."""
