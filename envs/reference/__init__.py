"""Free answers, judged against an expert's reference answer."""
