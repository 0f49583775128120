"""``support-v0``: customer support over a database of orders, with rules and a customer."""
