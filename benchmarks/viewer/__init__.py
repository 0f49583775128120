"""The viewer in a real browser: its driver, its pictures, and its speed with many episodes."""
