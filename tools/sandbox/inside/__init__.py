"""What runs inside a sandbox. Standard library only: these files travel as text, not as imports."""
