"""verifiers: the parser and verifier of mathematical answers that its task sets share.

Its rollouts need a harness and a served model, and are not played here.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from report import Finding, main, probe
from verifiers.v1.utils.score import verify_boxed_math_answer


@probe(2)
def math_in_threads():
    pair = r"So it is \boxed{5/2}", r"\frac{5}{2}"
    here = verify_boxed_math_answer(*pair)
    with ThreadPoolExecutor(1) as thread:
        there = thread.submit(verify_boxed_math_answer, *pair).result(60)
    saw = f"a right answer is worth {here} in the main thread and {there} in another"
    return Finding(here != there, saw)


main("verifiers")
