"""Language models as judges: which of two answers is better, and how good an answer is."""
