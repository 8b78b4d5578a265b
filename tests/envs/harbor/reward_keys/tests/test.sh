#!/bin/sh
echo 0 > /logs/verifier/reward.txt
[ "$(cat answer.txt)" = 42 ] && right=1 || right=0
echo "{\"right\": $right, \"length\": 0.5}" > /logs/verifier/reward.json
