#!/usr/bin/env bash
# A run whose learner is four ranks of torchrun, on this machine. The run waits for the ranks, and
# torchrun starts them again after a loss. The run's process ends the ranks when it ends.
set -euo pipefail
listen=127.0.0.1:7717 key=~/.cache/turnwise/join.key

python -m rl.train env=search-qa model=Qwen/Qwen3-0.6B device=cuda out=runs/ranks \
  learner.ranks=4 cluster=join cluster.listen=$listen cluster.key_file=$key &
run=$!
until (exec 3<>"/dev/tcp/${listen/://}") 2>/dev/null; do kill -0 $run; sleep 1; done
# The program torchrun, of the same Python as the run.
python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 \
  -m rl.learner.ranks.joining $listen $key
wait $run
