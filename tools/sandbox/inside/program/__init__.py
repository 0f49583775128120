"""The confined process, which runs a program, a submission, test code or a session."""
