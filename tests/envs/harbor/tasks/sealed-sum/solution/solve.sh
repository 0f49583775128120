#!/bin/bash
set -eu
total=0
while read -r number; do total=$((total + number)); done < /data/numbers.txt
echo "$total" > /answer/sum.txt
echo scratch > /answer/draft.tmp
