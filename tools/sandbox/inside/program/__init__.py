"""The confined process: runs a program, a submission, test code or a session."""
