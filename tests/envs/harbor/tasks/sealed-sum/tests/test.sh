#!/bin/bash
if [ "$(cat /answer/sum.txt 2>/dev/null)" = 40 ] && [ ! -e /answer/draft.tmp ] && [ ! -e /data ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
