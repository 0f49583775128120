"""Language models that judge: which answer is better, how good one is."""
