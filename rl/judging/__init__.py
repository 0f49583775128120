"""Language models as judges of answers: a local judge, labels of pairs, and grades as rewards."""
