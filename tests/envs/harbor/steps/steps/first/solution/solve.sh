#!/bin/sh
printf 1 > /app/first.txt
