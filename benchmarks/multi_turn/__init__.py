"""A benchmark of multi-turn reinforcement learning, for any trainer of language models.

``python -m benchmarks.multi_turn --trainer turnwise`` runs it; docs/multi-turn-benchmark.md has the
rules.
"""
