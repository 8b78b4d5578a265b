#!/bin/sh
test -e /app/only_of_the_agent && exit
if [ "$(cat /app/answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
