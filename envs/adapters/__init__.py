"""Adapters: environments of other libraries, and turnwise's environments in other libraries."""
