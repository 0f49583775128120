"""Mathematics with answers that can be checked: generated problems, and rows of GSM8K or MATH."""
