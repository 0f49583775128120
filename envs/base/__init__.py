"""What TextEnv is built from: calls, deadlines, the loop thread, services, sessions, spaces."""
