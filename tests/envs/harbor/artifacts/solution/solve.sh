#!/bin/sh
mkdir out && printf 42 | tee out/answer.txt > out/noise.log
echo 7 > /run/state
