#!/bin/bash
total=1
for number in "$@"; do total=$((total * number)); done
echo "$total"
