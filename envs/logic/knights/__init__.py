"""Knights and knaves: who tells the truth, and who lies?"""
