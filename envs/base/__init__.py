"""Parts of ``TextEnv``: calls, deadlines, the loop thread, services, sessions, spaces, imports."""
