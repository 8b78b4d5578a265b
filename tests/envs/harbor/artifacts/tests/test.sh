#!/bin/sh
cd /app/out && [ "$(cat answer.txt /logs/artifacts/state)" = 427 ] && [ "$(ls)" = answer.txt ] && echo 1 > /logs/verifier/reward.txt && exit
echo 0 > /logs/verifier/reward.txt
