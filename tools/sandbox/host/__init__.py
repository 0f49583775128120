"""The trusted side: queues callers, starts zygotes, sends jobs and reads the answers."""
