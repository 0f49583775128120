"""Correctness, memory and speed on one GPU: ``python -m benchmarks.gpu``; docs/gpu.md."""
