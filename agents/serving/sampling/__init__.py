"""Sending requests to servers: queues, retries, and servers that another process manages."""
