#!/bin/sh
if [ "$(cat answer.txt)" = hang ]; then sleep 600; fi
if [ "$(cat /app/answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
