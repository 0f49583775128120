"""Reports that users publish: bug reports and model cards. Neither contains secrets."""
