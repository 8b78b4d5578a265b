#!/bin/sh
if [ "$(cat /app/answer.txt)" = "$EXPECTED" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
