"""Adapters for environments of other libraries, and from turnwise to other libraries."""
