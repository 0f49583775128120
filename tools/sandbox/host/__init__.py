"""The host, a sandbox's trusted side: queues callers, starts zygotes and sends jobs."""
