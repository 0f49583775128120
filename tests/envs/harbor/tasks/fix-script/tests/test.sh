#!/bin/bash
passed=0
[ "$(bash /app/total.sh 1 2 3 4)" = 10 ] && passed=$((passed + 1))
[ "$(bash /app/total.sh "$LARGE" 1)" = 1001 ] && passed=$((passed + 1))
echo "{\"reward\": $((passed / 2)), \"passed\": $passed}" > /logs/verifier/reward.json
