"""Packed rows: sequences one after the other, without padding and with shared prefixes."""
